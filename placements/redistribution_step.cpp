// What one step of a redistribution is, moves and costs.
#include <c10/util/Exception.h>

#include <algorithm>

#include "placements/redistribution_search.h"

namespace dtensor::detail {
namespace {

using shard_math::cut;
using shard_math::cut_size;
using shard_math::Interval;

// The different sizes that `tensor_dim` has on the ranks, all cuts counted but the one of `but_mesh_dim`. A
// handful at most: each cut has full, remaining and empty pieces.
std::vector<std::int64_t> different_sizes(const Layout& layout, std::int64_t tensor_dim,
                                          std::int64_t global_size, int but_mesh_dim) {
  std::vector<std::int64_t> sizes = {global_size};
  for (const int mesh_dim : layout.cut_order()) {
    const auto& placement = layout.placement(mesh_dim);
    if (mesh_dim == but_mesh_dim || !placement.is_sharded(tensor_dim)) continue;
    std::vector<std::int64_t> pieces;
    for (const auto size : sizes) {
      for (std::int64_t index = 0; index < layout.mesh().size(mesh_dim); ++index) {
        pieces.push_back(cut_size(placement, size, layout.mesh().size(mesh_dim), index));
      }
    }
    std::sort(pieces.begin(), pieces.end());
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    sizes = std::move(pieces);
  }
  return sizes;
}

std::int64_t overlap(const std::vector<Interval>& some, const std::vector<Interval>& others) {
  std::int64_t common = 0;
  for (const auto& a : some) {
    for (const auto& b : others) common += shard_math::intersection(a, b).size;
  }
  return common;
}

// The most elements that a rank lacks of a whole of one of `sizes` when it is cut.
std::int64_t whole_minus_piece(const Placement& placement, const std::vector<std::int64_t>& sizes,
                               std::int64_t ranks) {
  std::int64_t most = 0;
  for (const auto size : sizes) {
    for (std::int64_t index = 0; index < ranks; ++index) {
      most = std::max(most, size - cut_size(placement, size, ranks, index));
    }
  }
  return most;
}

// The most elements that a rank gives away when the cut of one tensor dimension becomes one of another.
std::int64_t piece_minus_kept(const Placement& before, const std::vector<std::int64_t>& sizes_before,
                              const Placement& after, const std::vector<std::int64_t>& sizes_after,
                              std::int64_t ranks) {
  std::int64_t most = 0;
  for (std::int64_t index = 0; index < ranks; ++index) {
    // Uneven: the rank with the largest piece need not be the one that gives most, so every rank is asked.
    for (const auto size : sizes_before) {
      const std::int64_t piece = cut_size(before, size, ranks, index);
      for (const auto other : sizes_after) {
        most = std::max(most, piece * (other - cut_size(after, other, ranks, index)));
      }
    }
  }
  return most;
}

// The same where both cuts are of one tensor dimension (Interleaved and Shard).
std::int64_t piece_minus_overlap(const Placement& before, const Placement& after,
                                 const std::vector<std::int64_t>& sizes, std::int64_t ranks) {
  std::int64_t most = 0;
  for (const auto size : sizes) {
    for (std::int64_t index = 0; index < ranks; ++index) {
      most = std::max(most, cut_size(before, size, ranks, index) -
                                overlap(cut(before, size, ranks, index), cut(after, size, ranks, index)));
    }
  }
  return most;
}

}  // namespace

std::optional<StepKind> step_kind(const Placement& before, const Placement& after) {
  if (before == after) return std::nullopt;
  if (before.is_replicate()) return after.is_partial() ? StepKind::to_partial : StepKind::slice;
  if (before.is_partial()) {
    if (after.is_partial()) return std::nullopt;
    return after.is_replicate() ? StepKind::all_reduce : StepKind::reduce_scatter;
  }
  if (after.is_partial()) return std::nullopt;
  return after.is_replicate() ? StepKind::all_gather : StepKind::all_to_all;
}

std::int64_t step_bytes(StepKind kind, int mesh_dim, const Layout& before, const Layout& after,
                        shard_math::Sizes global_sizes, std::int64_t element_size) {
  const std::int64_t ranks = before.mesh().size(mesh_dim);
  if (kind == StepKind::slice || kind == StepKind::to_partial || ranks == 1) return 0;
  const Placement& old_cut = before.placement(mesh_dim);
  const Placement& new_cut = after.placement(mesh_dim);
  const auto sizes_of = [&](const Placement& placement) {
    const std::int64_t dim = placement.dim();
    return different_sizes(before, dim, global_sizes[static_cast<std::size_t>(dim)], mesh_dim);
  };

  // Tensor dimensions that the step leaves alone are cut by other mesh dimensions, each by its own: the
  // largest piece of each of them meets any piece of the dimensions concerned on some rank.
  std::int64_t elements = element_size;
  for (std::size_t dim = 0; dim < global_sizes.size(); ++dim) {
    const auto tensor_dim = static_cast<std::int64_t>(dim);
    if (old_cut.is_sharded(tensor_dim) || new_cut.is_sharded(tensor_dim)) continue;
    elements *= different_sizes(before, tensor_dim, global_sizes[dim], mesh_dim).back();
  }
  switch (kind) {
    case StepKind::slice:
    case StepKind::to_partial:
    case StepKind::all_reduce:
      return elements;
    case StepKind::all_gather:
      return elements * whole_minus_piece(old_cut, sizes_of(old_cut), ranks);
    case StepKind::reduce_scatter:
      return elements * whole_minus_piece(new_cut, sizes_of(new_cut), ranks);
    case StepKind::all_to_all:
      if (old_cut.dim() == new_cut.dim()) {
        return elements * piece_minus_overlap(old_cut, new_cut, sizes_of(old_cut), ranks);
      }
      return elements * piece_minus_kept(old_cut, sizes_of(old_cut), new_cut, sizes_of(new_cut), ranks);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown StepKind");
}

double step_cost(const RedistributionStep& step) {
  return communicates(step) ? latency_bytes + static_cast<double>(step.bytes) : 0;
}

}  // namespace dtensor::detail
