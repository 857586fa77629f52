// Index arithmetic of shards. The only place that divides sizes by ranks: everything else asks here.
#pragma once

#include "placements/layout.h"

#include <cstdint>
#include <span>
#include <vector>

namespace dtensor::shard_math {

using Sizes = std::span<const std::int64_t>;

// A run of indices [offset, offset + size) of one dimension.
struct Interval {
  std::int64_t offset = 0;
  std::int64_t size = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

// A block of a tensor: one interval per dimension.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
  friend bool operator==(const Box&, const Box&) = default;
};

// Piece `index` of `n` elements cut in `pieces` (piece size ceil(n / pieces); the last ones smaller or
// empty). An empty piece lies at offset n.
Interval piece(std::int64_t n, std::int64_t pieces, std::int64_t index);

// What two intervals have in common; an empty one lies where the later of them begins.
Interval intersection(const Interval& a, const Interval& b);

// The runs of [0, n) that one cut by `placement` (Shard or Interleaved) gives to `index` of `pieces` ranks,
// in the order in which that rank stores them: one run for Shard, one per part (empty ones included) for
// Interleaved.
// Errors: PlacementError when Interleaved parts do not add up to n.
std::vector<Interval> cut(const Placement& placement, std::int64_t n, std::int64_t pieces,
                          std::int64_t index);

// How many elements of [0, n) that cut gives to `index`.
std::int64_t cut_size(const Placement& placement, std::int64_t n, std::int64_t pieces, std::int64_t index);

// Sizes of the local tensor that the rank at `coordinate` (one index per mesh dimension) holds.
// Errors: PlacementError when a placement cuts a dimension that the tensor does not have.
std::vector<std::int64_t> local_sizes(const Layout& layout, Sizes global_sizes, Sizes coordinate);

// Size of one dimension of that local tensor.
std::int64_t local_size(const Layout& layout, std::int64_t tensor_dim, std::int64_t global_size,
                        Sizes coordinate);

// The global indices of `tensor_dim` that the rank at `coordinate` holds, as runs in storage order, without
// empty runs; adjacent runs are merged. Nested cuts apply to the piece, outermost first.
std::vector<Interval> local_intervals(const Layout& layout, std::int64_t tensor_dim, std::int64_t global_size,
                                      Sizes coordinate);

// The blocks of the global tensor that the rank at `coordinate` holds (the product of the intervals of its
// dimensions, row-major); empty for an empty shard.
std::vector<Box> local_boxes(const Layout& layout, Sizes global_sizes, Sizes coordinate);

// Whether every rank of the mesh holds equally many elements along `tensor_dim`.
bool is_even(const Layout& layout, std::int64_t tensor_dim, std::int64_t global_size);

}  // namespace dtensor::shard_math
