#include "placements/shard_math.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "placements/error.h"

namespace dtensor::shard_math {
namespace {

void check_parts(const Placement& placement, std::int64_t n) {
  const auto& parts = placement.parts();
  const auto total = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (total == n) return;
  throw PlacementError(
      fmt::format("the parts of {} add up to {}, but that dimension of the tensor has {} elements",
                  placement.to_string(), total, n));
}

void check_dims(const Layout& layout, Sizes global_sizes) {
  const auto ndim = static_cast<std::int64_t>(global_sizes.size());
  if (layout.max_dim() < ndim) return;
  throw PlacementError(
      fmt::format("layout {} cuts tensor dimension {}, but the tensor of global sizes [{}] has only "
                  "{} dimensions",
                  layout.to_string(), layout.max_dim(), fmt::join(global_sizes, ", "), ndim));
}

// What one more cut, which gives [wanted.offset, +size) of the elements held so far, leaves of `held`.
std::vector<Interval> select(const std::vector<Interval>& held, const std::vector<Interval>& wanted) {
  std::vector<Interval> result;
  for (const auto& want : wanted) {
    std::int64_t position = 0;  // of the run, counted in held elements
    for (const auto& run : held) {
      const std::int64_t begin = std::max(want.offset, position);
      const std::int64_t end = std::min(want.offset + want.size, position + run.size);
      if (begin < end) {
        const Interval part{run.offset + begin - position, end - begin};
        if (!result.empty() && result.back().offset + result.back().size == part.offset) {
          result.back().size += part.size;
        } else {
          result.push_back(part);
        }
      }
      position += run.size;
    }
  }
  return result;
}

}  // namespace

Interval intersection(const Interval& a, const Interval& b) {
  const auto begin = std::max(a.offset, b.offset), end = std::min(a.offset + a.size, b.offset + b.size);
  return {begin, std::max<std::int64_t>(end - begin, 0)};
}

Interval piece(std::int64_t n, std::int64_t pieces, std::int64_t index) {
  TORCH_INTERNAL_ASSERT(n >= 0 && index >= 0 && index < pieces, "piece ", index, " of ", pieces, " of ", n);
  const std::int64_t piece_size = n / pieces + (n % pieces != 0 ? 1 : 0);
  const std::int64_t offset = std::min(n, piece_size * index);
  return {offset, std::min(piece_size, n - offset)};
}

std::vector<Interval> cut(const Placement& placement, std::int64_t n, std::int64_t pieces,
                          std::int64_t index) {
  if (!placement.is_interleaved()) {
    TORCH_INTERNAL_ASSERT(placement.is_shard(), "only Shard and Interleaved cut");
    return {piece(n, pieces, index)};
  }
  check_parts(placement, n);
  std::vector<Interval> runs;
  std::int64_t start = 0;
  for (const auto part : placement.parts()) {
    const auto [offset, size] = piece(part, pieces, index);
    runs.push_back({start + offset, size});
    start += part;
  }
  return runs;
}

std::int64_t cut_size(const Placement& placement, std::int64_t n, std::int64_t pieces, std::int64_t index) {
  if (placement.is_shard()) return piece(n, pieces, index).size;
  TORCH_INTERNAL_ASSERT(placement.is_interleaved(), "only Shard and Interleaved cut");
  check_parts(placement, n);
  std::int64_t size = 0;
  for (const auto part : placement.parts()) size += piece(part, pieces, index).size;
  return size;
}

std::vector<std::int64_t> local_sizes(const Layout& layout, Sizes global_sizes, Sizes coordinate) {
  check_dims(layout, global_sizes);
  std::vector<std::int64_t> sizes(global_sizes.begin(), global_sizes.end());
  for (const int mesh_dim : layout.cut_order()) {
    const auto& placement = layout.placement(mesh_dim);
    if (!placement.is_sharded()) continue;
    auto& size = sizes[static_cast<std::size_t>(placement.dim())];
    size = cut_size(placement, size, layout.mesh().size(mesh_dim),
                    coordinate[static_cast<std::size_t>(mesh_dim)]);
  }
  return sizes;
}

std::int64_t local_size(const Layout& layout, std::int64_t tensor_dim, std::int64_t global_size,
                        Sizes coordinate) {
  std::int64_t size = global_size;
  for (const int mesh_dim : layout.cut_order()) {
    const auto& placement = layout.placement(mesh_dim);
    if (!placement.is_sharded(tensor_dim)) continue;
    size = cut_size(placement, size, layout.mesh().size(mesh_dim),
                    coordinate[static_cast<std::size_t>(mesh_dim)]);
  }
  return size;
}

std::vector<Interval> local_intervals(const Layout& layout, std::int64_t tensor_dim, std::int64_t global_size,
                                      Sizes coordinate) {
  std::vector<Interval> held;
  if (global_size > 0) held.push_back({0, global_size});
  std::int64_t size = global_size;
  for (const int mesh_dim : layout.cut_order()) {
    const auto& placement = layout.placement(mesh_dim);
    if (!placement.is_sharded(tensor_dim)) continue;
    const auto runs =
        cut(placement, size, layout.mesh().size(mesh_dim), coordinate[static_cast<std::size_t>(mesh_dim)]);
    held = select(held, runs);
    size = 0;
    for (const auto& run : runs) size += run.size;
  }
  return held;
}

std::vector<Box> local_boxes(const Layout& layout, Sizes global_sizes, Sizes coordinate) {
  check_dims(layout, global_sizes);
  std::vector<Box> boxes{Box{}};
  for (std::size_t dim = 0; dim < global_sizes.size(); ++dim) {
    const auto intervals =
        local_intervals(layout, static_cast<std::int64_t>(dim), global_sizes[dim], coordinate);
    std::vector<Box> longer;
    longer.reserve(boxes.size() * intervals.size());
    for (const auto& box : boxes) {
      for (const auto& interval : intervals) {
        longer.push_back(box);
        longer.back().offsets.push_back(interval.offset);
        longer.back().sizes.push_back(interval.size);
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

bool is_even(const Layout& layout, std::int64_t tensor_dim, std::int64_t global_size) {
  // A cut whose pieces differ stays uneven however its pieces are cut further: equal parts
  // would add up alike.
  std::int64_t size = global_size;
  for (const int mesh_dim : layout.cut_order()) {
    const auto& placement = layout.placement(mesh_dim);
    if (!placement.is_sharded(tensor_dim)) continue;
    const std::int64_t pieces = layout.mesh().size(mesh_dim);
    const std::int64_t first = cut_size(placement, size, pieces, 0);           // the largest
    if (cut_size(placement, size, pieces, pieces - 1) != first) return false;  // the smallest
    size = first;
  }
  return true;
}

}  // namespace dtensor::shard_math
