// Losses of element pairs. A mean divides by the global count, so that shards add up to the global mean.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

namespace dtensor {
namespace {

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

// mse_loss(self, target, reduction), binary_cross_entropy(self, target, weight?, reduction) and their kin, and
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

template <int reduction>
std::optional<Rule> pointwise_loss_backward(const OperatorCall& call) {
  return RuleBuilder(call)
      .pointwise(call.operands.size())
      .linear({0})
      .kernel(local_pointwise_loss<reduction>)
      .build();
}

// Losses of rows, one number each: multi_margin_loss(self, target, p, margin, weight?, reduction),
// multilabel_margin_loss_forward(self, target, reduction) -> (output, is_target). Rows may be cut.
template <int reduction, bool backward>
void local_row_loss(const KernelContext& context, std::vector<c10::IValue>& stack) {
  constexpr std::size_t rows = backward ? 1 : 0;
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base + rows].toTensor(), target = stack[base + rows + 1].toTensor();
  if (self.size(0) == 0) {  // the stock operators leave their result as it was in memory
    const bool each = stack[base + reduction].toInt() == at::Reduction::None;
    stack.resize(base);
    stack.emplace_back(backward ? at::zeros_like(self)
                                : at::zeros(each ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{},
                                            self.options()));
    if (!backward && target.dim() == 2) stack.emplace_back(at::zeros(target.sizes(), self.options()));
    return;
  }
  if (stack[base + reduction].toInt() != at::Reduction::Mean) return context.call_stock(stack);
  stack[base + reduction] = static_cast<std::int64_t>(at::Reduction::Sum);
  context.call_stock(stack);
  stack[base] = stack[base].toTensor() / static_cast<double>(context.operands[rows].sizes[0]);
}

template <int reduction, bool backward>
std::optional<Rule> row_loss(const OperatorCall& call) {
  const bool each = call.argument(reduction).toInt() == at::Reduction::None;
  const std::size_t self = backward ? 1 : 0;
  if (call.operand(self).ndim() != 2) return std::nullopt;
  RuleBuilder builder(call);
  const int row = builder.factor(each || backward ? Factor::Kind::pass : Factor::Kind::reduce);
  const int classes = builder.factor(Factor::Kind::whole);
  const bool labels = call.operand(self + 1).ndim() == 2;  // several targets a row
  builder.operand(self, {row, classes});
  builder.operand(self + 1, labels ? std::vector<int>{row, classes} : std::vector<int>{row});
  const auto rest = self + 2;  // weight over classes, or is_target
  if (rest < call.operands.size() && call.operand(rest).defined)
    builder.operand(rest, labels ? std::vector<int>{row, classes} : std::vector<int>{classes});
  if (backward) {
    if (call.operand(0).ndim() == 1) builder.operand(0, {row});
    builder.result({row, classes}).linear({0});
  } else {
    builder.result(each ? std::vector<int>{row} : std::vector<int>{});
    if (labels) builder.result({row, classes});
  }
  return builder.kernel(local_row_loss<reduction, backward>).build();
}

}  // namespace

void detail::add_loss_rules() {
  add_rule("aten::mse_loss", pointwise_loss<2>);
  add_rule("aten::mse_loss_backward", pointwise_loss_backward<3>);
  add_rule("aten::smooth_l1_loss", pointwise_loss<2>);
  add_rule("aten::smooth_l1_loss_backward", pointwise_loss_backward<3>);
  add_rule("aten::huber_loss", pointwise_loss<2>);
  add_rule("aten::huber_loss_backward", pointwise_loss_backward<3>);
  add_rule("aten::soft_margin_loss", pointwise_loss<2>);
  add_rule("aten::soft_margin_loss_backward", pointwise_loss_backward<3>);
  add_rule("aten::binary_cross_entropy", pointwise_loss<3>);
  add_rule("aten::binary_cross_entropy_backward", pointwise_loss_backward<4>);
  add_rule("aten::multi_margin_loss", row_loss<5, false>);
  add_rule("aten::multi_margin_loss_backward", row_loss<6, true>);
  add_rule("aten::multilabel_margin_loss_forward", row_loss<2, false>);
  add_rule("aten::multilabel_margin_loss_backward", row_loss<3, true>);
  add_rule("aten::binary_cross_entropy_with_logits", pointwise_loss<4>);
}

}  // namespace dtensor
