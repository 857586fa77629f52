// Normalisation with statistics of groups of channels, one for each row: rows pass, and groups where they are cut evenly.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

namespace dtensor {
namespace {

// The letters of an input [n, c, ...] whose channels hold the groups one after the other; `first_number`: the argument with
// N, which C, HxW and the number of groups follow. Nothing where the numbers do not tell of the input.
std::optional<std::vector<int>> row_letters(RuleBuilder& builder, const OperatorCall& call, std::size_t input,
                                            std::size_t first_number, Factor::Kind row) {
  const auto& sizes = call.operand(input).sizes;
  const auto groups = call.argument(first_number + 3).toInt();
  if (sizes.size() < 2 || sizes[0] != call.argument(first_number).toInt() ||
      sizes[1] != call.argument(first_number + 1).toInt() || groups < 1 || sizes[1] % groups != 0)
    return std::nullopt;
  auto letters = builder.letters(input, Factor::Kind::whole);
  builder.at(letters[0]).kind = row;
  letters[1] = builder.even_factor(groups);
  builder.operand(input, letters);
  return letters;
}

// One number a channel, where given.
bool channel_operand(RuleBuilder& builder, const OperatorCall& call, std::size_t operand, std::int64_t channels,
                     int letter) {
  if (!call.operand(operand).defined) return true;
  builder.operand(operand, {letter});
  return call.operand(operand).sizes == c10::IntArrayRef{channels};
}

// Makes N, C and the number of groups this rank's. An operator's kernel may refuse no rows: it is given one of zeros, and
// true is returned; its results say nothing then.
bool localize(const KernelContext& context, std::vector<c10::IValue>& stack, std::size_t base, std::size_t input,
              std::size_t first_number, std::initializer_list<std::size_t> with_rows) {
  const bool empty = stack[base + input].toTensor().size(0) == 0;
  if (empty)
    for (const auto i : with_rows) {
      const auto tensor = stack[base + i].toTensor();
      auto sizes = tensor.sizes().vec();
      sizes[0] = 1;
      stack[base + i] = at::zeros(sizes, tensor.options());
    }
  const auto local = stack[base + input].toTensor();
  stack[base + first_number] = local.size(0);
  stack[base + first_number + 1] = local.size(1);
  if (const auto channels = context.operands[input].sizes[1]; channels != 0)
    stack[base + first_number + 3] = stack[base + first_number + 3].toInt() * local.size(1) / channels;
  return empty;
}

void drop_rows(c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().narrow(0, 0, 0);
}

// native_group_norm(input, weight?, bias?, N, C, HxW, groups, eps) -> (output, mean [N, groups], inverse deviation)
void local_group_norm(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const bool empty = localize(context, stack, base, 0, 3, {0});
  context.call_stock(stack);
  if (!empty) return;
  for (std::size_t i = 0; i < 3; ++i) drop_rows(stack[base + i]);
}
std::optional<Rule> group_norm(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto letters = row_letters(builder, call, 0, 3, Factor::Kind::pass);
  if (!letters) return std::nullopt;
  for (std::size_t i = 1; i < 3; ++i)
    if (!channel_operand(builder, call, i, call.operand(0).sizes[1], (*letters)[1])) return std::nullopt;
  const std::vector<std::int64_t> statistics = {call.argument(3).toInt(), call.argument(6).toInt()};
  builder.result(*letters);
  for (int i = 1; i < 3; ++i) builder.sized_result({(*letters)[0], (*letters)[1]}, statistics);
  return builder.by_sizes().kernel(local_group_norm).build();
}

// native_group_norm_backward(grad, input, mean, inverse deviation, weight?, N, C, HxW, groups, mask) -> (of input, of weight,
// of bias), the latter two summed over the rows.
void local_group_norm_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const bool empty = localize(context, stack, base, 1, 5, {0, 1, 2, 3});
  context.call_stock(stack);
  if (empty) drop_rows(stack[base]);
}
std::optional<Rule> group_norm_backward(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto letters = row_letters(builder, call, 1, 5, Factor::Kind::reduce);
  if (!letters || call.operand(0).sizes != call.operand(1).sizes) return std::nullopt;
  const int row = (*letters)[0], group = (*letters)[1];
  builder.operand(0, *letters);
  for (std::size_t i = 2; i < 4; ++i) {
    if (call.operand(i).ndim() != 2 || call.operand(i).sizes[1] != call.argument(8).toInt()) return std::nullopt;
    builder.operand(i, {row, group});
  }
  if (!channel_operand(builder, call, 4, call.operand(1).sizes[1], group)) return std::nullopt;
  builder.result(*letters).result({group}).result({group}).linear({0});
  const auto mask = call.argument(9).toBoolList();
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.by_sizes().kernel(local_group_norm_backward).build();
}

}  // namespace

void detail::add_group_normalization_rules() {
  add_rule("aten::native_group_norm", group_norm);
  add_rule("aten::native_group_norm_backward", group_norm_backward);
}

}  // namespace dtensor
