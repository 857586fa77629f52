// A head and its loss over chunks of rows, so that the logits never exist whole: forward keeps four numbers per row,
// backward makes each chunk's logits again. Ranks that hold other classes talk once forward for all chunks together,
// in two all-reduces of a few numbers per row; backward leaves the gradient of hidden pending.
#include "ops/linear_cross_entropy.h"

#include "ops/class_loss.h"
#include "ops/loss_rows.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace dtensor {
namespace {

using detail::ClassLoss;
using detail::ClassRun;
using detail::LossTerms;

// What one rank holds of a head.
struct Head {
  at::Tensor hidden, weight, target, class_weight;
  std::vector<ClassRun> runs;
  LossTerms terms;
  std::int64_t chunk;

  std::vector<std::int64_t> batch() const { return target.sizes().vec(); }
  at::Tensor rows() const { return hidden.contiguous().view({target.numel(), hidden.size(-1)}); }
  at::Tensor each(const at::Tensor& tensor) const { return tensor.contiguous().view({target.numel(), 1, 1}); }
  ClassLoss loss() const { return {terms, runs, each(target), class_weight, false, hidden.scalar_type()}; }
  // Calls visit(first row, logits [rows, classes held, 1]) for each chunk.
  template <typename Visit>
  void for_chunks(const Visit& visit) const {
    const auto all = rows();
    const auto transposed = weight.t();
    const auto step =
        chunk > 0 ? chunk : std::max<std::int64_t>(1, (1 << 22) / std::max<std::int64_t>(1, weight.size(0)));
    for (std::int64_t first = 0; first < all.size(0); first += step)
      visit(first,
            at::mm(all.narrow(0, first, std::min(step, all.size(0) - first)), transposed).unsqueeze(-1));
  }
};

std::vector<at::Tensor> rows_of(const Head& head, const ClassLoss::AllReduce& all_reduce) {
  auto loss = head.loss();
  head.for_chunks([&](std::int64_t first, const at::Tensor& logits) {
    detail::for_blocks(logits.size(0), logits.size(1), 1, logits.is_cpu(),
                       [&](auto i, auto m, auto, auto) { loss.add(logits.narrow(0, i, m), first + i); });
  });
  const auto results = loss.finish(all_reduce);
  const auto batch = head.batch();
  return {results.losses.view(batch), results.weights.view(batch), results.maximum.view(batch),
          results.slope.view(batch)};
}

std::vector<at::Tensor> gradients_of(const Head& head, const at::Tensor& coefficient,
                                     const at::Tensor& maximum, const at::Tensor& slope, bool wants_hidden,
                                     bool wants_weight) {
  auto loss = head.loss();
  loss.set_gradient(coefficient.dim() == 0 ? coefficient : head.each(coefficient), head.each(maximum),
                    head.each(slope));
  std::int64_t filled = 0;
  for (const auto& run : head.runs) filled += run.size;
  const bool padded = filled != head.weight.size(0);
  const auto dtype = head.weight.scalar_type(), sum_dtype = wide(dtype);
  const auto rows = head.rows();
  at::Tensor of_hidden, of_weight;
  if (wants_hidden) of_hidden = at::empty(rows.sizes(), rows.options());
  // Chunks add up in float at least.
  if (wants_weight) of_weight = at::zeros(head.weight.sizes(), head.weight.options().dtype(sum_dtype));
  head.for_chunks([&](std::int64_t first, const at::Tensor& logits) {
    const auto written =
        padded ? at::zeros_like(logits) : logits;  // in place, where nothing else is left in it
    detail::for_blocks(logits.size(0), logits.size(1), 1, logits.is_cpu(), [&](auto i, auto m, auto, auto) {
      loss.write_gradient(logits.narrow(0, i, m), written.narrow(0, i, m), first + i);
    });
    const auto gradient = written.squeeze(-1);
    const auto count = gradient.size(0);
    if (wants_hidden) {
      auto part = of_hidden.narrow(0, first, count);
      at::mm_out(part, gradient, head.weight);
    }
    if (!wants_weight) return;
    const auto chunk = rows.narrow(0, first, count);
    if (dtype == sum_dtype)
      of_weight.addmm_(gradient.t(), chunk);
    else
      of_weight.add_(at::mm(gradient.t(), chunk));
  });
  if (wants_hidden) of_hidden = of_hidden.view(head.hidden.sizes());
  if (wants_weight) of_weight = of_weight.to(dtype);
  return {of_hidden, of_weight};
}

// ignore_index, smoothing, z_loss, classes, chunk: the arguments after the tensors
Head local_head(const KernelContext& context, const std::vector<c10::IValue>& stack, std::size_t base,
                std::size_t numbers) {
  Head head;
  head.hidden = stack[base].toTensor();
  head.weight = stack[base + 1].toTensor();
  head.target = detail::of_local_rows(context, 2, stack[base + 2].toTensor(), context.operands[0].ndim() - 1);
  head.class_weight = optional_tensor(stack[base + 3]);
  head.terms = {stack[numbers].toInt(), stack[numbers + 1].toDouble(), stack[numbers + 2].toDouble(),
                stack[numbers + 3].toInt()};
  head.chunk = stack[numbers + 4].toInt();
  head.runs = detail::class_runs(context.intervals(1, 0), head.terms.classes);
  return head;
}

void local_rows(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 9;
  const auto results =
      rows_of(local_head(context, stack, base, base + 4), [&](at::Tensor& tensor, ReduceOp op) {
        const std::int64_t classes[] = {0};
        context.all_reduce(tensor, op, 1, classes);
      });
  stack.resize(base);
  for (const auto& result : results) stack.emplace_back(result);
}

void local_gradient(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 14;
  const auto results = gradients_of(local_head(context, stack, base, base + 7), stack[base + 4].toTensor(),
                                    stack[base + 5].toTensor(), stack[base + 6].toTensor(),
                                    stack[base + 12].toBool(), stack[base + 13].toBool());
  stack.resize(base);
  for (const auto& result : results) stack.emplace_back(result);
}

// The rows follow hidden, and hidden stays where it is; the caller has made it whole where the weight is cut.
std::optional<Rule> rows_rule(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto rows = builder.letters(0);
  const int contracted = rows.back();
  rows.pop_back();
  builder.operand(1, {builder.factor(), contracted}).operand(2, rows);
  if (call.operand(3).defined) builder.operand(3, {builder.factor()});
  for (int i = 0; i < 4; ++i) builder.result(rows);
  builder.rule().keeps_layouts = true;
  return builder.kernel(local_rows).build();
}

// A head's gradients: [..., h], pending where classes are cut, and [classes, h], pending where rows are.
std::optional<Rule> gradient_rule(const OperatorCall& call) {
  RuleBuilder builder(call);
  std::vector<int> rows;
  for (std::int64_t dim = 0; dim + 1 < call.operand(0).ndim(); ++dim)
    rows.push_back(builder.factor(Factor::Kind::reduce));
  const int classes = builder.factor(Factor::Kind::reduce), contracted = builder.factor(Factor::Kind::whole);
  auto hidden = rows;
  hidden.push_back(contracted);
  builder.operand(0, hidden).operand(1, {classes, contracted}).operand(2, rows);
  if (call.operand(3).defined) builder.operand(3, {builder.factor(Factor::Kind::whole)});
  if (call.operand(4).ndim() > 0) builder.operand(4, rows);
  builder.operand(5, rows).operand(6, rows).result(hidden).result({classes, contracted});
  for (std::size_t i = 0; i < 2; ++i) builder.rule().results[i].defined = call.argument(12 + i).toBool();
  return builder.kernel(local_gradient).build();
}

Head whole_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                const std::optional<at::Tensor>& class_weight, const LossTerms& terms, std::int64_t chunk) {
  return {hidden,
          weight,
          target,
          class_weight.value_or(at::Tensor()),
          detail::class_runs({{0, weight.size(0)}}, terms.classes),
          terms,
          chunk};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> detail::linear_cross_entropy_rows(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
    const std::optional<at::Tensor>& class_weight, std::int64_t ignore_index, double smoothing, double z_loss,
    std::int64_t classes, std::int64_t chunk) {
  const auto results = rows_of(
      whole_head(hidden, weight, target, class_weight, {ignore_index, smoothing, z_loss, classes}, chunk),
      [](at::Tensor&, ReduceOp) {});
  return {results[0], results[1], results[2], results[3]};
}

std::tuple<at::Tensor, at::Tensor> detail::linear_cross_entropy_gradient(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
    const std::optional<at::Tensor>& class_weight, const at::Tensor& coefficient, const at::Tensor& maximum,
    const at::Tensor& slope, std::int64_t ignore_index, double smoothing, double z_loss, std::int64_t classes,
    std::int64_t chunk, bool wants_hidden, bool wants_weight) {
  const auto results = gradients_of(
      whole_head(hidden, weight, target, class_weight, {ignore_index, smoothing, z_loss, classes}, chunk),
      coefficient, maximum, slope, wants_hidden, wants_weight);
  return {results[0], results[1]};
}

void detail::add_linear_cross_entropy_rules() {
  add_rule("dtensor::linear_cross_entropy_rows", rows_rule);
  add_rule("dtensor::linear_cross_entropy_gradient", gradient_rule);
}

}  // namespace dtensor
