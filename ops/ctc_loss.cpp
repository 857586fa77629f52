// Connectionist temporal classification: the samples of a batch are independent and pass; each rank takes the lengths and
// targets of its own.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace dtensor {
namespace {

using Lengths = std::vector<std::int64_t>;

// The entries of this rank's samples.
Lengths of_this_rank(const Lengths& lengths, const std::vector<shard_math::Interval>& samples) {
  Lengths local;
  for (const auto& run : samples)
    local.insert(local.end(), lengths.begin() + run.offset, lengths.begin() + run.offset + run.size);
  return local;
}

// Targets one behind the other, without padding.
at::Tensor joined_targets(const at::Tensor& targets, const Lengths& lengths,
                          const std::vector<shard_math::Interval>& samples) {
  std::vector<at::Tensor> parts{targets.narrow(0, 0, 0)};
  for (const auto& run : samples) {
    const auto first = lengths.begin() + run.offset;
    const auto begin = std::accumulate(lengths.begin(), first, std::int64_t{0});
    parts.push_back(targets.narrow(0, begin, std::accumulate(first, first + run.size, std::int64_t{0})));
  }
  return at::cat(parts);
}

// Replaces targets and lengths, arguments `targets` to `targets + 2`, by those of this rank's samples.
void localize(const KernelContext& context, std::vector<c10::IValue>& stack, std::size_t base, std::size_t targets,
              std::size_t probabilities) {
  const auto samples = context.intervals(probabilities, 1);
  const auto input_lengths = stack[base + targets + 1].toIntVector();
  const auto target_lengths = stack[base + targets + 2].toIntVector();
  const auto count = static_cast<std::size_t>(context.operands[probabilities].sizes[1]);
  TORCH_CHECK(input_lengths.size() == count && target_lengths.size() == count,
              "ctc_loss: input_lengths and target_lengths must have one entry for each of the ", count, " samples");
  if (context.operands[targets].ndim() == 1) {
    TORCH_CHECK(std::accumulate(target_lengths.begin(), target_lengths.end(), std::int64_t{0}) <=
                    context.operands[targets].sizes[0],
                "ctc_loss: target_lengths add up to more than there are targets");
    stack[base + targets] = joined_targets(stack[base + targets].toTensor(), target_lengths, samples);
  }
  stack[base + targets + 1] = of_this_rank(input_lengths, samples);
  stack[base + targets + 2] = of_this_rank(target_lengths, samples);
}

std::int64_t states_of(const Lengths& target_lengths) {
  return target_lengths.empty() ? 1 : 2 * *std::max_element(target_lengths.begin(), target_lengths.end()) + 1;
}

// _ctc_loss(log_probabilities [T, N, C], targets, input_lengths, target_lengths, blank, zero_infinity) -> (losses [N],
// log_alpha [N, T, states]): the states are those of the longest target of all ranks.
void local_ctc_loss(const KernelContext& context, std::vector<c10::IValue>& stack) {
  if (!context.is_cut(0, 1)) return context.call_stock(stack);
  const auto base = stack.size() - context.global_arguments.size();
  const auto states = states_of(stack[base + 3].toIntVector());
  const auto probabilities = stack[base].toTensor();
  localize(context, stack, base, 1, 0);
  if (probabilities.numel() == 0) {
    stack.resize(base);
    stack.emplace_back(at::empty({0}, probabilities.options()));
    stack.emplace_back(at::empty({0, probabilities.size(0), states}, probabilities.options()));
    return;
  }
  context.call_stock(stack);
  const auto log_alpha = stack[base + 1].toTensor();
  if (log_alpha.size(2) < states)
    stack[base + 1] = at::constant_pad_nd(log_alpha, {0, states - log_alpha.size(2)},
                                          -std::numeric_limits<double>::infinity());
}

// _ctc_loss_backward(gradient [N], log_probabilities, targets, input_lengths, target_lengths, losses, log_alpha, ...)
void local_ctc_loss_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  if (!context.is_cut(1, 1)) return context.call_stock(stack);
  const auto base = stack.size() - context.global_arguments.size();
  const auto probabilities = stack[base + 1].toTensor();
  localize(context, stack, base, 2, 1);
  if (probabilities.numel() == 0) {
    stack.resize(base);
    stack.emplace_back(at::zeros_like(probabilities));
    return;
  }
  // The stock kernel takes the number of states from its own targets.
  const auto states = states_of(stack[base + 4].toIntVector());
  stack[base + 6] = stack[base + 6].toTensor().narrow(2, 0, states).contiguous();
  context.call_stock(stack);
}

std::optional<Rule> ctc_loss(const OperatorCall& call) {
  if (call.operand(0).ndim() != 3) return std::nullopt;
  RuleBuilder builder(call);
  const int sample = builder.factor(), time = builder.factor(Factor::Kind::whole),
            classes = builder.factor(Factor::Kind::whole), target = builder.factor(Factor::Kind::whole);
  builder.operand(0, {time, sample, classes});
  builder.operand(1, call.operand(1).ndim() == 1 ? std::vector<int>{target} : std::vector<int>{sample, target});
  return builder.result({sample}).result({sample, no_factor, no_factor}).kernel(local_ctc_loss).build();
}

std::optional<Rule> ctc_loss_backward(const OperatorCall& call) {
  if (call.operand(1).ndim() != 3) return std::nullopt;
  RuleBuilder builder(call);
  const int sample = builder.factor(), time = builder.factor(Factor::Kind::whole),
            classes = builder.factor(Factor::Kind::whole), target = builder.factor(Factor::Kind::whole);
  const int states = builder.factor(Factor::Kind::whole), steps = builder.factor(Factor::Kind::whole);
  builder.operand(0, {sample}).operand(1, {time, sample, classes});
  builder.operand(2, call.operand(2).ndim() == 1 ? std::vector<int>{target} : std::vector<int>{sample, target});
  builder.operand(3, {sample}).operand(4, {sample, steps, states}).linear({0});
  return builder.result({time, sample, classes}).kernel(local_ctc_loss_backward).build();
}

}  // namespace

void detail::add_ctc_loss_rules() {
  add_rule("aten::_ctc_loss", ctc_loss);
  add_rule("aten::_ctc_loss_backward", ctc_loss_backward);
}

}  // namespace dtensor
