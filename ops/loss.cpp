// Losses. A mean divides by the global count of valid targets, so that shards add up to the global mean.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

namespace dtensor {
namespace {

// nll_loss_forward(self, target, weight?, reduction, ignore_index) -> (output, total_weight)
void local_nll_loss(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 5;
  const auto reduction = stack[base + 3].toInt();
  const auto& operand = context.operands[0];
  const bool cut = operand.ndim() == 2 && !context.layout(0)->mesh_dims_cutting(0).empty();
  if (reduction == at::Reduction::None || !cut) return context.call_stock(stack);
  stack[base + 3] = static_cast<std::int64_t>(at::Reduction::Sum);
  context.call_stock(stack);
  auto output = stack[base].toTensor(), total_weight = stack[base + 1].toTensor();
  const std::int64_t batch[] = {0};
  context.all_reduce(total_weight, ReduceOp::sum, 0, batch);
  if (reduction == at::Reduction::Mean) output = output / total_weight;
  stack[base] = output;
  stack[base + 1] = total_weight;
}

std::optional<Rule> nll_loss(const OperatorCall& call) {
  const auto& self = call.operand(0);
  const auto reduction = call.argument(3).toInt();
  if (self.ndim() != 1 && self.ndim() != 2) return std::nullopt;
  RuleBuilder builder(call);
  const int classes = builder.factor(Factor::Kind::whole);
  std::vector<int> batch;
  if (self.ndim() == 2)
    batch.push_back(builder.factor(reduction == at::Reduction::None ? Factor::Kind::pass : Factor::Kind::reduce));
  auto input = batch;
  input.push_back(classes);
  builder.operand(0, input).operand(1, batch);
  if (call.operand(2).defined) builder.operand(2, {classes});
  builder.result(reduction == at::Reduction::None ? batch : std::vector<int>{}).completed_result({});
  return builder.kernel(local_nll_loss).build();
}

// nll_loss_backward(grad_output, self, target, weight?, reduction, ignore_index, total_weight)
std::optional<Rule> nll_loss_backward(const OperatorCall& call) {
  const auto& self = call.operand(1);
  if (self.ndim() != 1 && self.ndim() != 2) return std::nullopt;
  RuleBuilder builder(call);
  const int classes = builder.factor(Factor::Kind::whole);
  std::vector<int> batch;
  if (self.ndim() == 2) batch.push_back(builder.factor());
  auto input = batch;
  input.push_back(classes);
  if (call.operand(0).ndim() == 1) builder.operand(0, batch);
  builder.operand(1, input).operand(2, batch);
  if (call.operand(3).defined) builder.operand(3, {classes});
  return builder.result(input).linear({0}).build();
}

// The global count of elements after broadcasting.
double element_count(std::span<const Operand> operands) {
  std::int64_t ndim = 0;
  for (const auto& operand : operands)
    if (operand.defined) ndim = std::max(ndim, operand.ndim());
  double count = 1;
  for (std::int64_t dim = 1; dim <= ndim; ++dim) {
    std::int64_t size = 1;
    for (const auto& operand : operands)
      if (operand.defined && dim <= operand.ndim() && size == 1)
        size = operand.sizes[static_cast<std::size_t>(operand.ndim() - dim)];
    count *= static_cast<double>(size);
  }
  return count;
}

// mse_loss(self, target, reduction), binary_cross_entropy_with_logits(self, target, weight?, pos_weight?, reduction) and
// mse_loss_backward(grad, self, target, reduction): a mean is the sum, divided by the global count.
template <int reduction>
void local_pointwise_loss(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  if (stack[base + reduction].toInt() != at::Reduction::Mean) return context.call_stock(stack);
  stack[base + reduction] = static_cast<std::int64_t>(at::Reduction::Sum);
  context.call_stock(stack);
  stack[base] = stack[base].toTensor() / element_count(context.operands);
}

template <int reduction>
std::optional<Rule> pointwise_loss(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.pointwise(call.operands.size());
  if (call.argument(reduction).toInt() == at::Reduction::None) return builder.build();
  for (auto& factor : builder.rule().factors) factor.kind = Factor::Kind::reduce;
  builder.rule().results[0].dims.clear();
  return builder.kernel(local_pointwise_loss<reduction>).build();
}

std::optional<Rule> mse_loss_backward(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(3).linear({0}).kernel(local_pointwise_loss<3>).build();
}

}  // namespace

void detail::add_loss_rules() {
  add_rule("aten::nll_loss_forward", nll_loss);
  add_rule("aten::nll_loss_backward", nll_loss_backward);
  add_rule("aten::mse_loss", pointwise_loss<2>);
  add_rule("aten::mse_loss_backward", mse_loss_backward);
  add_rule("aten::binary_cross_entropy_with_logits", pointwise_loss<4>);
}

}  // namespace dtensor
