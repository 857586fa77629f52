#include "parallelize/gradient_bucket.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "dtensor/redistribute.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace dtensor::detail {

namespace {

bool is_pending_sum(const Placement& placement) {
  return placement.is_partial() && placement.reduce_op() == ReduceOp::sum;
}

// The mesh dimensions that a gradient may be pending on besides the data-parallel one.
std::vector<int> other_dims(const DataParallelReduction& reduction) {
  std::vector<int> dims;
  for (int dim = 0; dim < reduction.mesh->layout->ndim(); ++dim)
    if (dim != reduction.mesh_dim && reduction.mesh->layout->size(dim) > 1) dims.push_back(dim);
  return dims;
}

// How a parameter's gradient is placed when all ranks sum it: pending on the expected dimensions, as the parameter on the
// others; on the data-parallel one pending or not, as it comes.
const Layout* layout_to_sum(const Layout* gradient, const Layout* parameter, const std::vector<int>& pending, int mesh_dim) {
  const Layout* target = parameter;
  for (const int dim : pending) target = target->with(dim, Partial());
  return is_pending_sum(gradient->placement(mesh_dim)) ? target->with(mesh_dim, Partial()) : target;
}

// Per parameter: whether it has a gradient, and per other mesh dimension whether that is pending there, and whether not.
std::size_t observations_per_parameter(const DataParallelReduction& reduction) { return 1 + 2 * other_dims(reduction).size(); }

}  // namespace

GradientBucket::GradientBucket(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) entries_.push_back({.parameter = parameter, .pending = {}});
}

std::vector<at::Tensor> GradientBucket::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& entry : entries_) all.push_back(entry.parameter);
  return all;
}

void GradientBucket::before_accumulation(const DataParallelReduction& reduction) {
  if (!launched_) return;
  stale_ = true;
  if (!abandoned_) finish(reduction);
}

void GradientBucket::after_accumulation() {
  if (!launched_) ++arrived_;
}

bool GradientBucket::is_ready(const DataParallelReduction& reduction) const {
  return arrived_ == entries_.size() && std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const at::Tensor& gradient = entry.parameter.grad();
    if (!is_dtensor(gradient)) return false;
    const Layout* layout = meta(gradient).layout;
    return layout == layout_to_sum(layout, meta(entry.parameter).layout, entry.pending, reduction.mesh_dim);
  });
}

void GradientBucket::launch(const DataParallelReduction& reduction, Group& group, const std::vector<double>& more) {
  const int mesh_dim = reduction.mesh_dim;
  const bool is_first = reduction.mesh->coordinate[static_cast<std::size_t>(mesh_dim)] == 0;
  auto numbers = observations(reduction);
  numbers.insert(numbers.end(), more.begin(), more.end());
  more_ = more.size();

  std::vector<at::Tensor> parts;
  for (auto& [parameter, pending, elements, is_missing_here] : entries_) {
    at::Tensor& gradient = parameter.mutable_grad();
    is_missing_here = !is_dtensor(gradient);
    at::Tensor local;
    if (is_missing_here) {
      local = at::zeros_like(meta(parameter).local);
    } else {
      const Layout* target = layout_to_sum(meta(gradient).layout, meta(parameter).layout, pending, mesh_dim);
      if (meta(gradient).layout != target) gradient = move(gradient, target);
      const bool counts = target->placement(mesh_dim).is_partial() || is_first;
      local = counts ? meta(gradient).local : at::zeros_like(meta(gradient).local);
    }
    elements = local.numel();
    local = local.reshape({-1});
    parts.push_back(reduction.dtype ? local.to(*reduction.dtype) : local);
  }
  parts.push_back(at::tensor(numbers, parts.front().options()));
  flat_ = at::cat(parts);
  parts.clear();

  // In the gradients' place the buffer, where it has their dtype: it costs no memory of its own then.
  std::int64_t offset = 0;
  for (auto& entry : entries_) {
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (!entry.is_missing_here && meta(gradient).local.scalar_type() == flat_.scalar_type()) {
      const auto& data = meta(gradient);
      const auto piece = flat_.narrow(0, offset, entry.elements).view(data.local.sizes());
      gradient = wrap(piece, data.layout->with(mesh_dim, Replicate()), data.mesh, gradient.sizes());
    }
    offset += entry.elements;
  }
  work_ = group.all_reduce(flat_, ReduceOp::sum);
  launched_ = true;
  finished_ = stale_ = abandoned_ = false;
}

std::vector<double> GradientBucket::finish(const DataParallelReduction& reduction) {
  if (finished_) return {};
  work_.wait();
  const std::size_t stride = observations_per_parameter(reduction);
  const auto count = static_cast<std::int64_t>(entries_.size() * stride + more_);
  const auto numbers = flat_.narrow(0, flat_.numel() - count, count).to(at::kCPU, at::kDouble);
  const double* sums = numbers.const_data_ptr<double>();

  std::int64_t offset = 0;
  for (std::size_t i = 0; i < entries_.size() && !abandoned_; ++i) {
    auto& [parameter, pending, elements, is_missing_here] = entries_[i];
    const auto piece = flat_.narrow(0, offset, elements);
    offset += elements;
    if (sums[i * stride] == 0) continue;  // nobody had a gradient
    at::Tensor& gradient = parameter.mutable_grad();
    const bool is_new = is_missing_here || !is_dtensor(gradient);
    const at::ScalarType dtype = meta(parameter).local.scalar_type();
    if (!is_new && dtype == flat_.scalar_type()) continue;  // it is the piece
    const Layout* layout = is_new ? layout_to_sum(meta(parameter).layout, meta(parameter).layout, pending, reduction.mesh_dim)
                                           : meta(gradient).layout->with(reduction.mesh_dim, Replicate());
    gradient = wrap(piece.view(meta(parameter).local.sizes()).to(dtype), layout, reduction.mesh, parameter.sizes());
  }
  expect(reduction, sums);
  flat_ = at::Tensor();
  finished_ = true;
  return {sums + entries_.size() * stride, sums + count};
}

void GradientBucket::abandon() {
  arrived_ = 0;
  stale_ = abandoned_ = launched_;
}

void GradientBucket::reset() {
  arrived_ = 0;
  launched_ = finished_ = stale_ = abandoned_ = false;
  flat_ = at::Tensor();
  work_ = Work();
}

std::vector<double> GradientBucket::observations(const DataParallelReduction& reduction) const {
  std::vector<double> numbers;
  for (const auto& entry : entries_) {
    const at::Tensor& gradient = entry.parameter.grad();
    const bool is_here = is_dtensor(gradient);
    numbers.push_back(is_here ? 1 : 0);
    for (const int dim : other_dims(reduction)) {
      const bool is_pending = is_here && is_pending_sum(meta(gradient).layout->placement(dim));
      numbers.push_back(is_pending ? 1 : 0);
      numbers.push_back(is_here && !is_pending ? 1 : 0);
    }
  }
  return numbers;
}

void GradientBucket::expect(const DataParallelReduction& reduction, const double* sums) {
  for (auto& entry : entries_) {
    const bool is_anywhere = *sums++ > 0;
    if (is_anywhere) entry.pending.clear();
    for (const int dim : other_dims(reduction)) {
      const bool is_pending = *sums++ > 0, is_whole = *sums++ > 0;
      if (is_anywhere && is_pending && !is_whole) entry.pending.push_back(dim);
    }
  }
}

}  // namespace dtensor::detail
