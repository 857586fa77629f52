// A plain tensor placed on a mesh without any collective, in parts that a wrong rule cannot get right by luck.
#pragma once

#include "comm/device_mesh.h"
#include "placements/placement.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor::brute {

// The DTensor with the values of `full`, placed as told. Parts of a pending value are random on every rank (a sum of
// zeros and one whole part would pass through relu unharmed); they are chosen so that sums are exact for values that are
// multiples of 1/1024. Every rank passes the same `seed`.
at::Tensor placed(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements,
                  std::uint64_t seed);

// The placements that one mesh dimension may have for a tensor: Replicate, Shard of each dimension, and where asked for
// Interleaved of the last one and pending values.
struct PlacementKinds {
  bool pending = true;         // Partial(sum)
  bool other_pending = false;  // Partial(max), Partial(avg)
  bool interleaved = false;
};
std::vector<Placement> placements_for(const at::Tensor& full, PlacementKinds kinds);

}  // namespace dtensor::brute
