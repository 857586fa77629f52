// Scaled dot product attention: batch and heads pass, sequence and head size are whole.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace dtensor {
namespace {

// [b, h, t, d] letters with b and h passing.
std::vector<int> head_letters(RuleBuilder& builder, int batch, int heads) {
  return {batch, heads, builder.factor(Factor::Kind::whole), builder.factor(Factor::Kind::whole)};
}

// The factor of the heads. Fewer key and value heads than query heads (grouped-query attention): a rank needs whole groups,
// so the cut must divide the number of groups.
int head_factor(RuleBuilder& builder, const Operand& query, const Operand& key) {
  if (query.sizes[1] == key.sizes[1]) return builder.factor();
  builder.by_sizes();
  const bool grouped = key.sizes[1] != 0 && query.sizes[1] % key.sizes[1] == 0;
  return grouped ? builder.even_factor(key.sizes[1]) : builder.factor(Factor::Kind::whole);
}

// A mask [t, s] or [b or 1, h or 1, t, s].
void mask(RuleBuilder& builder, const OperatorCall& call, std::size_t index, int batch, int heads) {
  if (index >= call.operands.size() || !call.operand(index).defined) return;
  const auto& operand = call.operand(index);
  std::vector<int> dims;
  for (std::int64_t dim = 0; dim < operand.ndim(); ++dim) dims.push_back(builder.factor(Factor::Kind::whole));
  if (operand.ndim() == 4) {
    dims[0] = operand.sizes[0] == 1 ? no_factor : batch;
    dims[1] = operand.sizes[1] == 1 ? no_factor : heads;
  }
  builder.operand(index, dims);
}

// The stock kernels divide work by batch and heads; a rank without rows has nothing to do.
template <int tensors, int results>
void local_attention(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  if (stack[base].toTensor().numel() != 0) return context.call_stock(stack);
  if constexpr (results == 2) {
    const auto query = stack[base].toTensor(), value = stack[base + 2].toTensor();
    auto out = query.new_empty({query.size(0), query.size(2), query.size(1), value.size(3)}).transpose(1, 2);
    auto logsumexp = query.new_empty({query.size(0), query.size(2), query.size(1)}).transpose(1, 2);
    stack.resize(base);
    stack.emplace_back(out);
    stack.emplace_back(logsumexp);
  } else {
    const auto query = stack[base + 1].toTensor(), key = stack[base + 2].toTensor(), value = stack[base + 3].toTensor();
    stack.resize(base);
    for (const auto& tensor : {query, key, value}) stack.emplace_back(at::zeros_like(tensor));
  }
}

// _scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout_p, is_causal, *, attn_mask?, scale?) -> (out, logsumexp)
std::optional<Rule> flash(const OperatorCall& call) {
  if (call.operand(0).ndim() != 4) return std::nullopt;
  RuleBuilder builder(call);
  const int batch = builder.factor(), heads = head_factor(builder, call.operand(0), call.operand(1));
  const auto query = head_letters(builder, batch, heads);
  builder.operand(0, query).operand(1, head_letters(builder, batch, heads));
  const auto value = head_letters(builder, batch, heads);
  builder.operand(2, value);
  mask(builder, call, 3, batch, heads);
  builder.result({batch, heads, query[2], value[3]}).result({batch, heads, query[2]});
  return builder.kernel(local_attention<3, 2>).build();
}

// ..._backward(grad_out, q, k, v, out, logsumexp, dropout_p, is_causal, *, attn_mask?, scale?) -> (dq, dk, dv)
std::optional<Rule> flash_backward(const OperatorCall& call) {
  if (call.operand(1).ndim() != 4) return std::nullopt;
  RuleBuilder builder(call);
  const int batch = builder.factor(), heads = head_factor(builder, call.operand(1), call.operand(2));
  const auto query = head_letters(builder, batch, heads), key = head_letters(builder, batch, heads);
  const auto value = head_letters(builder, batch, heads);
  const std::vector<int> out = {batch, heads, query[2], value[3]};
  builder.operand(0, out).operand(1, query).operand(2, key).operand(3, value).operand(4, out);
  builder.operand(5, {batch, heads, query[2]});
  mask(builder, call, 6, batch, heads);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& sizes = call.operand(i + 1).sizes;
    const auto& dims = i == 0 ? query : i == 1 ? key : value;
    call.operand(1).sizes[1] == call.operand(2).sizes[1] ? builder.result(dims) : builder.sized_result(dims, sizes.vec());
  }
  return builder.linear({0}).kernel(local_attention<6, 3>).build();
}

// _fused_sdp_choice(q, k, v, mask?, ...) -> int: which kernel. Asked of an empty tensor with the global geometry, so that
// every rank chooses alike even where its shard is empty.
void local_choice(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  for (std::size_t i = 0; i < context.operands.size(); ++i) {
    const auto& operand = context.operands[i];
    auto& slot = stack[base + static_cast<std::size_t>(operand.argument)];
    if (!operand.defined || !operand.layout) continue;
    slot = at::empty_strided(operand.sizes, operand.strides, slot.toTensor().options());
  }
  context.call_stock(stack);
}
std::optional<Rule> choice(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.rule().keeps_layouts = true;
  for (std::size_t i = 0; i < call.operands.size(); ++i) builder.letters(i);
  return builder.kernel(local_choice).build();
}

}  // namespace

void detail::add_attention_rules() {
  add_rule("aten::_scaled_dot_product_flash_attention_for_cpu", flash);
  add_rule("aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_backward);
  add_rule("aten::_fused_sdp_choice", choice);
}

}  // namespace dtensor
