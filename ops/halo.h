// Halo exchange: a rank whose piece of a result reads a range of an operand that reaches beyond its own piece fetches the
// range from the ranks that hold it; gradients of the range go back to them and are added.
#pragma once

#include "comm/device_mesh.h"
#include "placements/shard_math.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor {

class HaloExchange {
 public:
  // Of a dimension of `size`, which `mesh_dim` alone cuts, in order; `wanted` holds the range that each of its ranks needs.
  HaloExchange(detail::MeshState& mesh, int mesh_dim, std::int64_t dim, std::int64_t size,
               std::vector<shard_math::Interval> wanted);

  // This rank's piece -> the range it wants. One all-to-all.
  at::Tensor fetch(const at::Tensor& piece) const;
  // A tensor over this rank's range -> the sum, over all ranks, of what lies on this rank's piece. One all-to-all.
  at::Tensor give_back(const at::Tensor& range) const;

 private:
  std::vector<at::Tensor> exchange(const at::Tensor& tensor, const std::vector<shard_math::Interval>& had,
                                   const std::vector<shard_math::Interval>& needed) const;

  detail::MeshState& mesh_;
  int mesh_dim_;
  std::int64_t dim_;
  std::size_t rank_;
  std::vector<shard_math::Interval> pieces_, wanted_;  // per rank
};

}  // namespace dtensor
