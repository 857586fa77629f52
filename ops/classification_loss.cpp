// nll_loss, of rows of log-probabilities over classes and a target class each. Rows may be cut, and classes: then a rank
// picks the targets that fall in its part, the loss is pending, and nothing of the size of the input moves (with log_softmax
// this is Megatron-LM's vocab-parallel cross entropy). A mean divides by the global weight of the valid targets.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

namespace dtensor {
namespace {

// Of the input: [C], [N, C] or, of nll_loss2d, [N, C, H, W]. The target has the same dimensions without the classes'.
std::int64_t class_dim(std::int64_t ndim) { return ndim == 1 ? 0 : 1; }

// Targets as seen by a rank that holds some of the classes.
struct LocalTargets {
  at::Tensor index;  // in this rank's part of the classes; any where it is not `mine`
  at::Tensor mine;   // valid and in this rank's part
  at::Tensor valid;  // not ignored
};

LocalTargets local_targets(const KernelContext& context, std::size_t input, const at::Tensor& target,
                           std::int64_t ignore_index) {
  const auto& operand = context.operands[input];
  const auto dim = class_dim(operand.ndim());
  const auto intervals = context.intervals(input, dim);
  const std::int64_t offset = intervals.empty() ? 0 : intervals.front().offset;
  const std::int64_t size = intervals.empty() ? 0 : intervals.front().size;
  const auto classes = operand.sizes[static_cast<std::size_t>(dim)];
  LocalTargets targets;
  targets.valid = target.ne(ignore_index);
  if (target.is_cpu())
    TORCH_CHECK_INDEX(!(targets.valid & (target.lt(0) | target.ge(classes))).any().item<bool>(),
                      "nll_loss: a target is out of bounds: there are ", classes, " classes");
  targets.mine = targets.valid & target.ge(offset) & target.lt(offset + size);
  targets.index = (target - offset).masked_fill(targets.mine.logical_not(), 0);
  return targets;
}

// weight[target] of this rank's targets, 0 of others.
at::Tensor local_weights(const LocalTargets& targets, const at::Tensor& weight, const at::Tensor& like) {
  const auto mine = targets.mine.to(like.scalar_type());
  if (!weight.defined() || weight.numel() == 0) return mine;
  return weight.take(targets.index) * mine;
}

std::vector<std::int64_t> batch_dims(std::int64_t ndim) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < ndim; ++dim)
    if (dim != class_dim(ndim)) dims.push_back(dim);
  return dims;
}

// nll_loss_forward(self, target, weight?, reduction, ignore_index) -> (output, total_weight)
void local_nll_loss(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 5;
  const auto reduction = stack[base + 3].toInt();
  const auto ndim = context.operands[0].ndim(), classes = class_dim(ndim);
  const auto batch = batch_dims(ndim);
  const bool batch_cut =
      std::any_of(batch.begin(), batch.end(), [&](auto dim) { return context.is_cut(0, dim); });
  const bool class_cut = context.is_cut(0, classes);
  if (!class_cut && (reduction == at::Reduction::None || !batch_cut)) return context.call_stock(stack);
  at::Tensor output, total_weight;
  if (class_cut) {
    const auto self = stack[base].toTensor(), target = stack[base + 1].toTensor();
    const auto targets = local_targets(context, 0, target, stack[base + 4].toInt());
    const auto weights = local_weights(targets, optional_tensor(stack[base + 2]), self);
    const auto picked = self.size(classes) == 0
                            ? at::zeros(target.sizes(), self.options())
                            : self.gather(classes, targets.index.unsqueeze(classes)).squeeze(classes);
    output = at::where(targets.mine, -picked * weights, at::zeros({}, self.options()));
    total_weight = at::zeros({}, self.options());
    if (reduction != at::Reduction::None || ndim == 1) {  // a single row has its weight told in any case
      output = output.sum();
      total_weight = weights.sum();
      const std::int64_t dims[] = {classes};
      context.all_reduce(total_weight, ReduceOp::sum, 0, dims);
    }
  } else {
    stack[base + 3] = static_cast<std::int64_t>(at::Reduction::Sum);
    context.call_stock(stack);
    output = stack[base].toTensor();
    total_weight = stack[base + 1].toTensor();
  }
  if (reduction != at::Reduction::None) context.all_reduce(total_weight, ReduceOp::sum, 0, batch);
  if (reduction == at::Reduction::Mean) output = output / total_weight;
  stack.resize(base);
  stack.emplace_back(output);
  stack.emplace_back(total_weight);
}

// Letters of input and target; classes whole where an interleaved cut has no single range of them.
struct Letters {
  std::vector<int> input, target;
  int classes = no_factor;
};
Letters letters_of(RuleBuilder& builder, const Operand& input, int mesh_ndim, Factor::Kind batch,
                   Factor::Kind classes) {
  for (int mesh_dim = 0; mesh_dim < mesh_ndim; ++mesh_dim)
    if (input.placement(mesh_dim).is_interleaved()) classes = Factor::Kind::whole;
  Letters letters;
  for (std::int64_t dim = 0; dim < input.ndim(); ++dim) {
    const bool is_class = dim == class_dim(input.ndim());
    letters.input.push_back(builder.factor(is_class ? classes : batch));
    if (is_class)
      letters.classes = letters.input.back();
    else
      letters.target.push_back(letters.input.back());
  }
  return letters;
}

std::optional<Rule> nll_loss(const OperatorCall& call) {
  const auto& self = call.operand(0);
  const bool each = call.argument(3).toInt() == at::Reduction::None;
  if ((self.ndim() != 1 && self.ndim() != 2 && self.ndim() != 4) || call.operand(1).ndim() != self.ndim() - 1)
    return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = letters_of(builder, self, call.mesh->ndim(),
                                  each ? Factor::Kind::pass : Factor::Kind::reduce, Factor::Kind::reduce);
  builder.operand(0, letters.input).operand(1, letters.target);
  if (call.operand(2).defined) builder.operand(2, {letters.classes});
  builder.result(each ? letters.target : std::vector<int>{}).completed_result({});
  return builder.kernel(local_nll_loss).build();
}

// nll_loss_backward(grad_output, self, target, weight?, reduction, ignore_index, total_weight)
void local_nll_loss_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto ndim = context.operands[1].ndim(), classes = class_dim(ndim);
  if (!context.is_cut(1, classes)) return context.call_stock(stack);
  const auto base = stack.size() - 7;
  const auto gradient = stack[base].toTensor(), self = stack[base + 1].toTensor(),
             target = stack[base + 2].toTensor();
  const auto targets = local_targets(context, 1, target, stack[base + 5].toInt());
  auto weights = local_weights(targets, optional_tensor(stack[base + 3]), self);
  if (stack[base + 4].toInt() == at::Reduction::Mean) weights = weights / stack[base + 6].toTensor();
  auto result = at::zeros_like(self, at::MemoryFormat::Contiguous);
  const auto values = (-weights * gradient).masked_fill(targets.mine.logical_not(), 0);
  if (self.size(classes) != 0)
    result.scatter_add_(classes, targets.index.unsqueeze(classes), values.unsqueeze(classes));
  stack.resize(base);
  stack.emplace_back(result);
}

std::optional<Rule> nll_loss_backward(const OperatorCall& call) {
  const auto& self = call.operand(1);
  if (self.ndim() != 1 && self.ndim() != 2 && self.ndim() != 4) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = letters_of(builder, self, call.mesh->ndim(), Factor::Kind::pass, Factor::Kind::pass);
  if (call.operand(0).ndim() == call.operand(2).ndim()) builder.operand(0, letters.target);
  builder.operand(1, letters.input).operand(2, letters.target);
  if (call.operand(3).defined) builder.operand(3, {letters.classes});
  return builder.result(letters.input).linear({0}).kernel(local_nll_loss_backward).build();
}

}  // namespace

void detail::add_classification_loss_rules() {
  for (const char* name : {"aten::nll_loss", "aten::nll_loss2d"}) {
    add_rule(std::string(name) + "_forward", nll_loss);
    add_rule(std::string(name) + "_backward", nll_loss_backward);
  }
}

}  // namespace dtensor
