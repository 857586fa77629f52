// Cross entropy from logits in two operators, forward and backward, for logits cut in any dimension: where classes
// are cut, two all-reduces of a few numbers per row forward and none backward, as in Megatron-LM's
// vocab_parallel_cross_entropy.
//
// The rules keep layouts: a choice by cost would gather small logits. The caller (dtensor/cross_entropy.cpp) has
// placed targets and coefficients like the logits' rows, or left them whole, and then a rank takes its part here.
#include "ops/cross_entropy.h"

#include "ops/class_loss.h"
#include "ops/kernel_context.h"
#include "ops/loss_rows.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

namespace dtensor {
namespace {

using detail::ClassLoss;
using detail::ClassRun;
using detail::LossTerms;

// Logits as [outer, classes, inner], and the sizes of their rows.
struct Rows {
  Rows(c10::IntArrayRef sizes, std::int64_t class_dim) {
    for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(sizes.size()); ++dim) {
      const auto size = sizes[static_cast<std::size_t>(dim)];
      if (dim != class_dim) batch.push_back(size);
      (dim < class_dim ? outer : dim == class_dim ? classes : inner) *= size;
    }
  }
  std::int64_t outer = 1, classes = 1, inner = 1;
  std::vector<std::int64_t> batch;

  at::Tensor logits(const at::Tensor& tensor) const {
    return tensor.contiguous().view({outer, classes, inner});
  }
  at::Tensor each(const at::Tensor& tensor) const { return tensor.contiguous().view({outer, 1, inner}); }
  at::Tensor coefficient(const at::Tensor& tensor) const { return tensor.dim() == 0 ? tensor : each(tensor); }
};

// What one rank knows of a call.
struct Part {
  std::vector<ClassRun> runs;
  at::Tensor target, weight;
  bool weight_is_stored = false;
  ClassLoss::AllReduce all_reduce;
};

std::vector<at::Tensor> rows_of_part(const at::Tensor& logits, const Part& part, std::int64_t class_dim,
                                     const LossTerms& terms) {
  const Rows rows(logits.sizes(), class_dim);
  ClassLoss loss(terms, part.runs, rows.each(part.target), part.weight, part.weight_is_stored,
                 logits.scalar_type());
  const auto all = rows.logits(logits);
  detail::for_blocks(
      rows.outer, rows.classes, rows.inner, logits.is_cpu(),
      [&](auto i, auto m, auto j, auto n) { loss.add(all.narrow(0, i, m).narrow(2, j, n), i, j); });
  const auto results = loss.finish(part.all_reduce);
  return {results.losses.view(rows.batch), results.weights.view(rows.batch), results.maximum.view(rows.batch),
          results.slope.view(rows.batch)};
}

at::Tensor gradient_of_part(const at::Tensor& logits, const Part& part, const at::Tensor& coefficient,
                            const at::Tensor& maximum, const at::Tensor& slope, std::int64_t class_dim,
                            const LossTerms& terms) {
  const Rows rows(logits.sizes(), class_dim);
  ClassLoss loss(terms, part.runs, rows.each(part.target), part.weight, part.weight_is_stored,
                 logits.scalar_type());
  loss.set_gradient(rows.coefficient(coefficient), rows.each(maximum), rows.each(slope));
  std::int64_t filled = 0;
  for (const auto& run : part.runs) filled += run.size;
  const auto gradient = filled == rows.classes ? at::empty(logits.sizes(), logits.options())
                                               : at::zeros(logits.sizes(), logits.options());
  const auto all = rows.logits(logits), written = rows.logits(gradient);
  detail::for_blocks(rows.outer, rows.classes, rows.inner, logits.is_cpu(),
                     [&](auto i, auto m, auto j, auto n) {
                       loss.write_gradient(all.narrow(0, i, m).narrow(2, j, n),
                                           written.narrow(0, i, m).narrow(2, j, n), i, j);
                     });
  return gradient;
}

Part whole_part(const at::Tensor& logits, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                std::int64_t class_dim, std::int64_t classes) {
  return {detail::class_runs({{0, logits.size(class_dim)}}, classes), target, weight.value_or(at::Tensor()),
          false, [](at::Tensor&, ReduceOp) {}};
}

Part local_part(const KernelContext& context, const std::vector<c10::IValue>& stack, std::size_t base,
                std::int64_t class_dim, std::int64_t classes) {
  Part part;
  part.runs = detail::class_runs(context.intervals(0, class_dim), classes);
  part.target = detail::of_local_rows(context, 1, stack[base + 1].toTensor(), class_dim);
  part.weight = optional_tensor(stack[base + 2]);
  part.weight_is_stored = part.weight.defined() && context.is_cut(2, 0);
  part.all_reduce = [&context, class_dim](at::Tensor& tensor, ReduceOp op) {
    const std::int64_t dims[] = {class_dim};
    context.all_reduce(tensor, op, 0, dims);
  };
  return part;
}

// class_dim, ignore_index, smoothing, z_loss, classes: the arguments after the tensors
LossTerms terms_of(const std::vector<c10::IValue>& stack, std::size_t first) {
  return {stack[first + 1].toInt(), stack[first + 2].toDouble(), stack[first + 3].toDouble(),
          stack[first + 4].toInt()};
}

void local_rows(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 8;
  const auto class_dim = stack[base + 3].toInt();
  const auto terms = terms_of(stack, base + 3);
  const auto results = rows_of_part(
      stack[base].toTensor(), local_part(context, stack, base, class_dim, terms.classes), class_dim, terms);
  stack.resize(base);
  for (const auto& result : results) stack.emplace_back(result);
}

void local_gradient(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 11;
  const auto class_dim = stack[base + 6].toInt();
  const auto terms = terms_of(stack, base + 6);
  const auto coefficient = detail::of_local_rows(context, 3, stack[base + 3].toTensor(), class_dim);
  const auto result =
      gradient_of_part(stack[base].toTensor(), local_part(context, stack, base, class_dim, terms.classes),
                       coefficient, stack[base + 4].toTensor(), stack[base + 5].toTensor(), class_dim, terms);
  stack.resize(base);
  stack.emplace_back(result);
}

// The dimensions of rows and logits; operands 1 and, of the gradient, 3 to 5 have those of rows.
std::vector<int> row_letters(RuleBuilder& builder, const OperatorCall& call, std::int64_t class_dim) {
  auto rows = builder.letters(0);
  rows.erase(rows.begin() + class_dim);
  for (std::size_t i = 1; i < call.operands.size(); ++i) {
    if (i == 2 && call.operand(2).defined) builder.operand(2, {builder.factor()});
    if (i != 2 && call.operand(i).ndim() > 0) builder.operand(i, rows);
  }
  builder.rule().keeps_layouts = true;
  return rows;
}

// The kernels take their operands as they come, which must be values: callers see to that (dtensor/cross_entropy.cpp).
bool any_pending(const OperatorCall& call) {
  for (const Operand& operand : call.operands)
    if (operand.layout && operand.layout->has_partial()) return true;
  return false;
}

std::optional<Rule> rows_rule(const OperatorCall& call) {
  if (any_pending(call)) return std::nullopt;
  RuleBuilder builder(call);
  const auto rows = row_letters(builder, call, call.argument(3).toInt());
  for (int i = 0; i < 4; ++i) builder.result(rows);
  return builder.kernel(local_rows).build();
}

std::optional<Rule> gradient_rule(const OperatorCall& call) {
  if (any_pending(call)) return std::nullopt;
  RuleBuilder builder(call);
  row_letters(builder, call, call.argument(6).toInt());
  return builder.result(builder.rule().operands[0]).kernel(local_gradient).build();
}

}  // namespace

at::Tensor detail::of_local_rows(const KernelContext& context, std::size_t operand, at::Tensor tensor,
                                 std::int64_t class_dim) {
  if (tensor.dim() == 0) return tensor;
  for (std::int64_t dim = 0; dim < context.operands[0].ndim(); ++dim) {
    const auto row_dim = dim < class_dim ? dim : dim - 1;
    if (dim == class_dim || !context.is_cut(0, dim) || context.is_cut(operand, row_dim)) continue;
    std::vector<at::Tensor> parts;
    for (const auto& run : context.intervals(0, dim))
      parts.push_back(tensor.narrow(row_dim, run.offset, run.size));
    tensor = parts.empty() ? tensor.narrow(row_dim, 0, 0) : at::cat(parts, row_dim);
  }
  return tensor;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> detail::cross_entropy_rows(
    const at::Tensor& logits, const at::Tensor& target, const std::optional<at::Tensor>& weight,
    std::int64_t class_dim, std::int64_t ignore_index, double smoothing, double z_loss,
    std::int64_t classes) {
  const auto results = rows_of_part(logits, whole_part(logits, target, weight, class_dim, classes), class_dim,
                                    {ignore_index, smoothing, z_loss, classes});
  return {results[0], results[1], results[2], results[3]};
}

at::Tensor detail::cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& target,
                                          const std::optional<at::Tensor>& weight,
                                          const at::Tensor& coefficient, const at::Tensor& maximum,
                                          const at::Tensor& slope, std::int64_t class_dim,
                                          std::int64_t ignore_index, double smoothing, double z_loss,
                                          std::int64_t classes) {
  return gradient_of_part(logits, whole_part(logits, target, weight, class_dim, classes), coefficient,
                          maximum, slope, class_dim, {ignore_index, smoothing, z_loss, classes});
}

void detail::add_cross_entropy_rules() {
  add_rule("dtensor::cross_entropy_rows", rows_rule);
  add_rule("dtensor::cross_entropy_gradient", gradient_rule);
}

}  // namespace dtensor
