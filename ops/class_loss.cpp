#include "ops/class_loss.h"

#include "ops/kernel_context.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

namespace dtensor::detail {
namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}  // namespace

std::vector<ClassRun> class_runs(const std::vector<shard_math::Interval>& intervals, std::int64_t classes) {
  std::vector<ClassRun> runs;
  std::int64_t stored = 0;
  for (const auto& interval : intervals) {
    const auto size = std::min(interval.offset + interval.size, classes) - interval.offset;
    if (size > 0) runs.push_back({stored, interval.offset, size});
    stored += interval.size;
  }
  return runs;
}

ClassLoss::ClassLoss(LossTerms terms, std::vector<ClassRun> runs, const at::Tensor& target,
                     const at::Tensor& weight, bool weight_is_stored, at::ScalarType logits_dtype)
    : terms_(terms),
      runs_(std::move(runs)),
      target_(target.to(at::kLong)),
      weight_is_stored_(weight_is_stored),
      options_(target.options().dtype(wide(logits_dtype))) {
  ignored_ = target_.eq(terms_.ignore_index);
  if (target_.is_cpu())
    TORCH_CHECK_INDEX(
        !((target_.lt(0) | target_.ge(terms_.classes)) & ignored_.logical_not()).any().item<bool>(),
        "cross entropy: a target is out of bounds: there are ", terms_.classes, " classes");
  if (weight.defined()) weight_ = weight.to(options_.dtype());
  maximum_ = at::full(target_.sizes(), -infinity, options_);
  sum_ = at::zeros(target_.sizes(), options_);
  picked_ = at::zeros(target_.sizes(), options_);
  if (smooth()) spread_ = at::zeros(target_.sizes(), options_);
  if (weight_.defined()) row_weight_ = at::zeros(target_.sizes(), options_);
}

at::Tensor ClassLoss::rows(const at::Tensor& all, const at::Tensor& block, std::int64_t outer,
                           std::int64_t inner) const {
  return all.narrow(0, outer, block.size(0)).narrow(2, inner, block.size(2));
}

at::Tensor ClassLoss::run_weight(const ClassRun& run) const {
  return weight_.narrow(0, weight_is_stored_ ? run.stored : run.first, run.size).unsqueeze(-1);
}

ClassLoss::Picked ClassLoss::pick(const ClassRun& run, const at::Tensor& target) const {
  auto index = target - run.first;
  // An ignored target may lie in the run; its row is masked at the end.
  auto other = index.lt(0) | index.ge(run.size);
  return {index.masked_fill_(other, 0), other};
}

void ClassLoss::add(const at::Tensor& logits, std::int64_t outer, std::int64_t inner) {
  const auto of_block = [&](const at::Tensor& all) { return rows(all, logits, outer, inner); };
  auto maximum = of_block(maximum_);
  for (const auto& run : runs_)
    maximum.copy_(at::maximum(maximum, logits.narrow(1, run.stored, run.size).amax(1, true)));
  const auto base = maximum.masked_fill(maximum.eq(-infinity), 0);
  const auto target = of_block(target_);
  for (const auto& run : runs_) {
    const auto part = logits.narrow(1, run.stored, run.size);
    const auto [index, other] = pick(run, target);
    of_block(picked_).add_(part.gather(1, index).to(options_.dtype()).masked_fill_(other, 0));
    auto shifted = at::sub(part, base);  // wide, as the base is
    if (weight_.defined()) {
      const auto weight = run_weight(run);
      of_block(row_weight_).add_(weight.take(index).masked_fill_(other, 0));
      if (smooth()) of_block(spread_).add_((shifted * weight).sum(1, true));
    } else if (smooth()) {
      of_block(spread_).add_(shifted.sum(1, true));
    }
    of_block(sum_).add_(shifted.exp_().sum(1, true));
  }
}

RowResults ClassLoss::finish(const AllReduce& all_reduce) {
  auto maximum = maximum_.clone();
  all_reduce(maximum, ReduceOp::max);
  at::Tensor class_weights;  // the sum of w_j, of this rank first
  if (smooth()) {
    class_weights = at::zeros({1}, options_);
    for (const auto& run : runs_)
      class_weights.add_(weight_.defined() ? run_weight(run).sum() : at::scalar_tensor(run.size, options_));
    // Sums were taken of x_j - maximum_ where this rank has a finite one, else of x_j.
    const auto base = maximum_.masked_fill(maximum_.eq(-infinity), 0);
    spread_.add_((base - maximum) * class_weights);
  }
  sum_.mul_((maximum_ - maximum).exp_());
  if (runs_.empty()) sum_.zero_();
  // All sums travel in one message.
  std::vector<at::Tensor> parts{sum_, picked_};
  if (smooth()) parts.insert(parts.end(), {spread_, class_weights});
  if (weight_.defined()) parts.push_back(row_weight_);
  std::vector<at::Tensor> flat;
  for (const auto& part : parts) flat.push_back(part.flatten());
  auto packed = at::cat(flat);
  all_reduce(packed, ReduceOp::sum);
  std::int64_t offset = 0;
  for (auto& part : parts) {
    const auto size = part.numel();
    part = packed.narrow(0, offset, size).view(part.sizes());
    offset += size;
  }
  const auto& sum = parts[0];
  const auto weights =
      weight_.defined() ? parts.back().masked_fill(ignored_, 0) : ignored_.logical_not().to(options_.dtype());
  const double kept = 1 - terms_.smoothing;
  const auto log_sum = sum.log();
  auto losses = (log_sum - (picked_.copy_(parts[1]).sub_(maximum))).mul_(weights).mul_(kept);
  auto slope = weights * kept;
  if (smooth()) {
    const double share = terms_.smoothing / static_cast<double>(terms_.classes);
    losses.add_((log_sum * parts[3]).sub_(parts[2]), share);
    slope.add_(parts[3], share);
  }
  if (terms_.z_loss != 0) {
    const auto log_partition = log_sum + maximum;
    losses.add_(log_partition.square().mul_(weights), terms_.z_loss);
    slope.add_(weights * log_partition, 2 * terms_.z_loss);
  }
  return {losses.masked_fill_(ignored_, 0), weights, maximum, slope.div_(sum).masked_fill_(ignored_, 0)};
}

void ClassLoss::set_gradient(const at::Tensor& coefficient, const at::Tensor& maximum,
                             const at::Tensor& slope) {
  const auto rows_of = coefficient.to(options_.dtype()).expand(target_.sizes()).masked_fill(ignored_, 0);
  maximum_ = maximum;
  gradient_factor_ = rows_of * slope;
  target_factor_ = rows_of * -(1 - terms_.smoothing);
  if (smooth()) class_factor_ = rows_of * (-terms_.smoothing / static_cast<double>(terms_.classes));
}

void ClassLoss::write_gradient(const at::Tensor& logits, at::Tensor gradient, std::int64_t outer,
                               std::int64_t inner) const {
  const auto of_block = [&](const at::Tensor& all) { return rows(all, logits, outer, inner); };
  const auto target = of_block(target_);
  for (const auto& run : runs_) {
    const auto part = logits.narrow(1, run.stored, run.size);
    auto written = gradient.narrow(1, run.stored, run.size);
    const bool direct = written.scalar_type() == options_.dtype().toScalarType();
    auto values = direct ? written : at::empty(part.sizes(), options_);
    at::sub_out(values, part, of_block(maximum_));
    values.exp_().mul_(of_block(gradient_factor_));
    const auto [index, other] = pick(run, target);
    auto of_target = of_block(target_factor_);
    if (weight_.defined()) {
      const auto weight = run_weight(run);
      if (smooth()) values.addcmul_(of_block(class_factor_), weight);
      of_target = of_target * weight.take(index);
    } else if (smooth()) {
      values.add_(of_block(class_factor_));
    }
    values.scatter_add_(1, index, of_target.masked_fill(other, 0));
    if (!direct) written.copy_(values);
  }
}

void for_blocks(std::int64_t outer, std::int64_t classes, std::int64_t inner, bool cpu,
                const std::function<void(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& visit) {
  if (outer == 0 || inner == 0) return;
  // Half a megabyte of doubles; where there is no cache to fit, few large kernels.
  const std::int64_t budget =
      (cpu ? std::int64_t{1} << 16 : std::int64_t{1} << 24) / std::max<std::int64_t>(classes, 1);
  const auto inner_step = std::clamp<std::int64_t>(budget, 1, inner);
  const auto outer_step = std::clamp<std::int64_t>(budget / inner, 1, outer);
  for (std::int64_t i = 0; i < outer; i += outer_step)
    for (std::int64_t j = 0; j < inner; j += inner_step)
      visit(i, std::min(outer_step, outer - i), j, std::min(inner_step, inner - j));
}

}  // namespace dtensor::detail
