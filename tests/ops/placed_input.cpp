#include "placed_input.h"

#include "dtensor/dtensor.h"
#include "placements/shard_math.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace dtensor::brute {
namespace {

// Multiples of 1/8 in [-4, 4), the same on every rank.
at::Tensor noise(const at::Tensor& like, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  auto values = at::randint(-32, 32, like.sizes(), generator, at::TensorOptions().dtype(at::kLong));
  if (!at::isFloatingType(like.scalar_type()) && !at::isComplexType(like.scalar_type()))
    return values.to(like.scalar_type());
  return values.to(like.scalar_type()).div_(8);
}

// Part `index` of `count` whose reduction is `full`.
at::Tensor part(const at::Tensor& full, ReduceOp op, std::int64_t index, std::int64_t count,
                std::uint64_t seed) {
  const auto other = [&](std::int64_t i) { return noise(full, seed + static_cast<std::uint64_t>(i)); };
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: {
      auto whole = op == ReduceOp::avg ? full * count : full.clone();
      if (index > 0) return other(index);
      for (std::int64_t i = 1; i < count; ++i) whole.sub_(other(i));
      return whole;
    }
    case ReduceOp::max:
    case ReduceOp::min: {
      // Each element is held by one rank; the others hold something beyond it.
      const auto owner = at::arange(full.numel()).remainder(count).view(full.sizes()).eq(index);
      const auto away = other(index).abs();
      return at::where(owner, full, op == ReduceOp::max ? full - away : full + away);
    }
    case ReduceOp::product:
      return index == 0 ? full / 2 : at::full_like(full, index == 1 ? 2 : 1);
  }
  return full;
}

}  // namespace

at::Tensor placed(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements,
                  std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  const Layout& layout = *detail::layout_for(mesh, placements, full.dim());
  const auto& coordinate = mesh.coordinate();
  auto local = full.detach();
  std::int64_t index = 0, count = 1;
  ReduceOp op = ReduceOp::sum;
  for (int dim = 0; dim < mesh.ndim(); ++dim)
    if (layout.placement(dim).is_partial()) {
      op = layout.placement(dim).reduce_op();
      index = index * mesh.size(dim) + coordinate[static_cast<std::size_t>(dim)];
      count *= mesh.size(dim);
    }
  if (count > 1) local = part(local, op, index, count, seed);
  for (std::int64_t dim = 0; dim < full.dim(); ++dim) {
    std::vector<at::Tensor> runs;
    for (const auto& run : shard_math::local_intervals(layout, dim, full.size(dim), coordinate))
      runs.push_back(local.narrow(dim, run.offset, run.size));
    local = runs.empty() ? local.narrow(dim, 0, 0) : at::cat(runs, dim);
  }
  FromLocalOptions options;
  options.global_sizes = full.sizes().vec();
  return from_local(local.clone(at::MemoryFormat::Contiguous), mesh, placements, options);
}

std::vector<Placement> placements_for(const at::Tensor& full, PlacementKinds kinds) {
  std::vector<Placement> all = {Replicate()};
  for (std::int64_t dim = 0; dim < full.dim(); ++dim) all.push_back(Shard(dim));
  const bool numbers = at::isFloatingType(full.scalar_type()) || at::isComplexType(full.scalar_type());
  if (kinds.pending && numbers) all.push_back(Partial());
  if (kinds.other_pending && numbers) all.push_back(Partial(ReduceOp::avg));
  if (kinds.other_pending && at::isFloatingType(full.scalar_type())) all.push_back(Partial(ReduceOp::max));
  if (kinds.interleaved && full.dim() > 0)
    if (const auto size = full.size(-1); size >= 3)
      all.push_back(Interleaved(full.dim() - 1, {size / 3, size - size / 3}));
  return all;
}

}  // namespace dtensor::brute
