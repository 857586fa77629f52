// The redistribution planner: which collectives bring a tensor from one layout to another. Pure: no tensors,
// no ranks, so all ranks plan alike without talking.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placements/layout.h"
#include "placements/shard_math.h"

namespace dtensor {

// One step changes the placement of one mesh dimension (`mesh_dim`), from layout `before` to layout `after`.
enum class StepKind : std::uint8_t {
  slice,       // Replicate -> Shard: keep one's piece. Free.
  to_partial,  // Replicate -> Partial: sum keeps the value on coordinate 0 and zero elsewhere (product: one
               // elsewhere); avg, max and min copy. Free.
  all_reduce,  // Partial -> Replicate
  reduce_scatter,  // Partial -> Shard
  all_gather,      // Shard -> Replicate
  all_to_all,      // Shard -> Shard of another dimension or another kind of cut
};
const char* to_string(StepKind kind);

// In all of these "Shard" means Shard or Interleaved. The cut that a step removes is the innermost of its
// tensor dimension, and so is the cut that it adds. On a mesh dimension of size 1 neither holds, the kind may
// be any that names the change best, and the local tensor stays what it is: a change of label.
struct RedistributionStep {
  StepKind kind;
  int mesh_dim;
  const Layout* before;
  const Layout* after;
  // Received by a rank, the largest over ranks: all_reduce n, all_gather output minus own part,
  // reduce_scatter and all_to_all input minus what the rank keeps of it; 0 for free steps and mesh dimensions
  // of size 1.
  std::int64_t bytes;
};

// Whether ranks talk in this step: not in free kinds, and not along a mesh dimension of size 1.
bool communicates(const RedistributionStep& step);

struct RedistributionPlan {
  std::vector<RedistributionStep> steps;
  std::int64_t bytes = 0;  // sum over the steps
  double cost = 0;         // comparable figure: latency of each collective + bytes; 0 for free steps
};

// Every ordered pair of layouts on one mesh has a plan, of at most 3 steps per mesh dimension; from a layout
// to itself it is empty. Dimensions of the mesh of size 1 never communicate.
// Where several Partial placements are pending, the true value is found by reducing the last mesh dimension
// first (this matters only for unlike operators; sum and avg mix freely).
// Errors: MeshError when the meshes differ; PlacementError when a layout does not fit the sizes.
RedistributionPlan plan_redistribution(const Layout* from, const Layout* to, shard_math::Sizes global_sizes,
                                       std::int64_t element_size);

// The cost of one collective that lets a rank receive `bytes`: what `RedistributionPlan::cost` adds up, in
// bytes (a collective's latency counts as if it moved `latency_bytes` more).
inline constexpr double latency_bytes = 16 * 1024;

}  // namespace dtensor
