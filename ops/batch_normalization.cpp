// Normalisation with statistics of the batch or of groups of channels. Batch normalisation: channels are independent and
// pass; the batch passes where the statistics are given (evaluation), else it is whole. Group normalisation: the batch
// passes.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

namespace dtensor {
namespace {

// Letters of the input [n, c, ...].
std::vector<int> input_letters(RuleBuilder& builder, std::size_t operand, Factor::Kind batch,
                               Factor::Kind image) {
  auto letters = builder.letters(operand, image);
  builder.at(letters[0]).kind = batch;
  builder.at(letters[1]).kind = Factor::Kind::pass;
  return letters;
}

// One number a channel, or an empty tensor.
void channel_operand(RuleBuilder& builder, const OperatorCall& call, std::size_t operand, int channel) {
  if (operand < call.operands.size() && call.operand(operand).defined)
    builder.operand(operand, {call.operand(operand).sizes[0] == 0 ? no_factor : channel});
}

// native_batch_norm(input, weight?, bias?, running_mean?, running_var?, training, momentum, eps) -> (output, mean, inverse
// deviation), the latter two empty in evaluation. `statistics`: how many running statistics the form has.
template <std::size_t statistics, int training_argument, int results>
std::optional<Rule> batch_norm(const OperatorCall& call) {
  if (call.operand(0).ndim() < 2) return std::nullopt;
  const bool training =
      training_argument < 0 || call.argument(static_cast<std::size_t>(training_argument)).toBool();
  if (!training && statistics == 0) return std::nullopt;
  RuleBuilder builder(call);
  const auto kind = training ? Factor::Kind::whole : Factor::Kind::pass;
  const auto letters = input_letters(builder, 0, kind, kind);
  for (std::size_t i = 1; i < 3 + statistics; ++i) channel_operand(builder, call, i, letters[1]);
  builder.result(letters);
  for (int i = 1; i < 3; ++i) training ? builder.result({letters[1]}) : builder.completed_result({no_factor});
  if (results == 4) builder.completed_result({no_factor});  // room for a GPU's kernel
  return builder.build();
}

// native_batch_norm_backward(grad, input, weight?, running_mean?, running_var?, mean?, inverse deviation?, training, eps,
// mask) -> (of input, of weight, of bias)
std::optional<Rule> batch_norm_backward(const OperatorCall& call) {
  if (call.operand(1).ndim() < 2) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = input_letters(builder, 1, Factor::Kind::whole, Factor::Kind::whole);
  builder.operand(0, letters);
  for (std::size_t i = 2; i < 7; ++i) channel_operand(builder, call, i, letters[1]);
  builder.result(letters).result({letters[1]}).result({letters[1]}).linear({0});
  const auto mask = call.argument(9).toBoolList();
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.build();
}

// native_group_norm(input, weight?, bias?, N, C, HxW, group, eps) -> (output, mean [N, group], inverse deviation): N is this
// rank's.
void local_group_norm(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 8;
  const auto input = stack[base].toTensor();
  if (input.size(0) == 0) {
    const auto statistics = at::empty({0, stack[base + 6].toInt()}, input.options());
    stack.resize(base);
    stack.emplace_back(at::empty_like(input));
    stack.emplace_back(statistics);
    stack.emplace_back(statistics.clone());
    return;
  }
  stack[base + 3] = input.size(0);
  context.call_stock(stack);
}
std::optional<Rule> group_norm(const OperatorCall& call) {
  if (call.operand(0).ndim() < 2 || call.operand(0).sizes[0] != call.argument(3).toInt()) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(0, Factor::Kind::whole);
  builder.at(letters[0]).kind = Factor::Kind::pass;
  for (std::size_t i = 1; i < 3; ++i) channel_operand(builder, call, i, letters[1]);
  builder.result(letters).result({letters[0], no_factor}).result({letters[0], no_factor});
  return builder.kernel(local_group_norm).build();
}

// native_group_norm_backward(grad, input, mean, inverse deviation, weight?, N, C, HxW, group, mask)
void local_group_norm_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 10;
  const auto input = stack[base + 1].toTensor();
  if (input.size(0) == 0) {
    const auto mask = stack[base + 9].toBoolList();
    const auto none = at::zeros({stack[base + 6].toInt()}, input.options());
    stack.resize(base);
    stack.emplace_back(mask.get(0) ? at::empty_like(input) : at::Tensor());
    for (std::size_t i = 1; i < 3; ++i) stack.emplace_back(mask.get(i) ? none.clone() : at::Tensor());
    return;
  }
  stack[base + 5] = input.size(0);
  context.call_stock(stack);
}
std::optional<Rule> group_norm_backward(const OperatorCall& call) {
  if (call.operand(1).ndim() < 2 || call.operand(1).sizes[0] != call.argument(5).toInt()) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(1, Factor::Kind::whole);
  builder.at(letters[0]).kind = Factor::Kind::reduce;  // the gradients of weight and bias sum over the batch
  builder.operand(0, letters);
  for (std::size_t i = 2; i < 4; ++i) builder.operand(i, {letters[0], builder.factor(Factor::Kind::whole)});
  channel_operand(builder, call, 4, letters[1]);
  builder.result(letters)
      .result({letters[1]})
      .result({letters[1]})
      .linear({0})
      .kernel(local_group_norm_backward);
  const auto mask = call.argument(9).toBoolList();
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.build();
}

}  // namespace

void detail::add_batch_normalization_rules() {
  add_rule("aten::native_batch_norm", batch_norm<2, 5, 3>);
  add_rule("aten::_native_batch_norm_legit", batch_norm<2, 5, 3>);
  add_rule("aten::_native_batch_norm_legit.no_stats", batch_norm<0, 3, 3>);
  add_rule("aten::_batch_norm_with_update", batch_norm<2, -1, 4>);
  add_rule("aten::native_batch_norm_backward", batch_norm_backward);
  add_rule("aten::native_group_norm", group_norm);
  add_rule("aten::native_group_norm_backward", group_norm_backward);
}

}  // namespace dtensor
