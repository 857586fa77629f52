// Embedding tables cut by vocabulary or by hidden size.
#include "ops/kernel_context.h"
#include "ops/local_indices.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace dtensor {
namespace {

void refuse_sparse(const OperatorCall& call, std::size_t argument) {
  if (call.argument(argument).toBool())
    throw UnsupportedError(call.to_string() +
                           ": sparse gradients have no distributed form; build the Embedding with sparse(false)");
}

// embedding(weight [V, h], indices [...], padding_idx, scale_grad_by_freq, sparse) -> [..., h]
void local_embedding(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 5;
  const auto weight = stack[base].toTensor(), indices = stack[base + 1].toTensor();
  if (weight.size(0) == context.operands[0].sizes[0]) return context.call_stock(stack);
  const auto local = local_indices(context, 0, 0, indices);
  stack.resize(base);
  if (weight.size(0) == 0) {
    auto sizes = indices.sizes().vec();
    sizes.push_back(weight.size(1));
    stack.emplace_back(at::zeros(sizes, weight.options()));
    return;
  }
  // Foreign rows are zero at once, so the result is a plain pending sum.
  stack.emplace_back(at::embedding(weight, local.indices).masked_fill_(local.foreign.unsqueeze(-1), 0));
}

std::optional<Rule> embedding(const OperatorCall& call) {
  if (call.operand(0).ndim() != 2) return std::nullopt;
  refuse_sparse(call, 4);
  RuleBuilder builder(call);
  const int vocabulary = builder.factor(Factor::Kind::reduce), hidden = builder.factor();
  auto result = builder.letters(1);
  result.push_back(hidden);
  return builder.operand(0, {vocabulary, hidden}).result(result).kernel(local_embedding).build();
}

// dtensor::embedding_gradient(gradient [..., h], indices [...], weight [V, h], padding_idx, scale) -> [V, h], placed
// like the weight: the stock formula does not know the table and would build all of it on every rank.
void local_embedding_gradient(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 5;
  auto gradient = stack[base].toTensor(), indices = stack[base + 1].toTensor();
  const auto weight = stack[base + 2].toTensor();
  const auto padding = stack[base + 3].toInt();
  const bool scale = stack[base + 4].toBool();
  stack.resize(base);
  if (weight.size(0) != context.operands[2].sizes[0]) {
    if (padding >= 0) gradient = gradient.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
    const auto local = local_indices(context, 2, 0, indices);
    gradient = gradient.masked_fill(local.foreign.unsqueeze(-1), 0);
    if (weight.size(0) == 0) {
      stack.emplace_back(at::zeros_like(weight));
      return;
    }
    // Foreign positions add zero to row 0; a count by frequency would still see them, so they get a row of their own.
    const auto rows = weight.size(0);
    const auto spread = local.indices.masked_fill(local.foreign, rows);
    stack.emplace_back(at::embedding_dense_backward(gradient, spread, rows + 1, -1, scale).narrow(0, 0, rows).clone());
    return;
  }
  stack.emplace_back(at::embedding_dense_backward(gradient, indices, weight.size(0), padding, scale));
}

std::optional<Rule> embedding_gradient(const OperatorCall& call) {
  RuleBuilder builder(call);
  // Scaling by frequency counts over all positions: they may not be split.
  const bool scale = call.argument(4).toBool();
  auto gradient = builder.letters(1, scale ? Factor::Kind::whole : Factor::Kind::reduce);
  const int vocabulary = builder.factor(), hidden = builder.factor();
  gradient.push_back(hidden);
  builder.operand(0, gradient).operand(2, {vocabulary, hidden}).result({vocabulary, hidden}).linear({0});
  return builder.kernel(local_embedding_gradient).build();
}

}  // namespace

void detail::add_embedding_rules() {
  add_rule("aten::embedding", embedding);
  add_rule("dtensor::embedding_gradient", embedding_gradient);
}

}  // namespace dtensor
