// Layout: where each part of a tensor lives, apart from its sizes.
#pragma once

#include "placements/mesh_layout.h"
#include "placements/placement.h"

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

// A mesh, one placement per mesh dimension, and the order in which mesh dimensions cut a tensor dimension
// that several of them cut. Interned process-wide and immortal: equal layouts are the same object, compared
// by pointer. Holds no sizes, strides or dtype, so a new sequence length makes no new layout.
class Layout {
 public:
  // `cut_order`: the mesh dimensions in the order in which they cut, outermost first (a permutation of
  // 0..ndim-1); empty = left to right. Only the relative order of mesh dimensions that cut the same tensor
  // dimension means anything; layouts that differ elsewhere are the same object.
  // Dimensions must already be normalised (not negative).
  // Errors: PlacementError when the count of placements is not the mesh's ndim, a dimension is negative, the
  // order is no permutation, or two mesh dimensions cut one tensor dimension and one of the cuts is Interleaved
  // and not outermost.
  static const Layout* of(const MeshLayout* mesh, const Placements& placements,
                          const std::vector<int>& cut_order = {});

  const MeshLayout& mesh() const { return *mesh_; }
  const MeshLayout* mesh_pointer() const { return mesh_; }
  const Placements& placements() const { return placements_; }
  const Placement& placement(int mesh_dim) const { return placements_[static_cast<std::size_t>(mesh_dim)]; }
  int mesh_ndim() const { return static_cast<int>(placements_.size()); }

  // The canonical cut order: a permutation of all mesh dimensions, outermost first.
  const std::vector<int>& cut_order() const { return cut_order_; }
  // The mesh dimensions that cut `tensor_dim`, outermost first.
  std::vector<int> mesh_dims_cutting(std::int64_t tensor_dim) const;

  bool is_replicated() const { return replicated_; }  // every placement is Replicate
  bool has_partial() const { return has_partial_; }
  bool is_sharded() const { return sharded_; }  // some placement is Shard or Interleaved
  bool has_default_order() const { return default_order_; }
  // The largest tensor dimension any placement cuts, or -1.
  std::int64_t max_dim() const { return max_dim_; }

  // The same layout with one placement replaced (cut order kept).
  const Layout* with(int mesh_dim, Placement placement) const;
  // The layout on the same mesh with every placement Replicate.
  const Layout* replicated() const;
  // The same layout with Replicate where it is Partial: what its values have once reduced, and what gradients of a tensor
  // so placed have.
  const Layout* without_partial() const;

  // "[Shard(0), Replicate] on (dp=2, tp=2) on cpu"; also names the cut order where it is not left to right.
  std::string to_string() const;

  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

 private:
  Layout() = default;
  const MeshLayout* mesh_ = nullptr;
  Placements placements_;
  std::vector<int> cut_order_;
  bool replicated_ = true, has_partial_ = false, sharded_ = false, default_order_ = true;
  std::int64_t max_dim_ = -1;
};

}  // namespace dtensor
