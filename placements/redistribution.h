// The redistribution planner: which collectives bring a tensor from one layout to another. Pure: no tensors,
// no ranks, so all ranks plan alike without talking.
#pragma once

#include "placements/layout.h"
#include "placements/shard_math.h"

#include <cstdint>
#include <string>
#include <vector>

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

struct RedistributionStep {
  StepKind kind;
  int mesh_dim;
  const Layout* before;
  const Layout* after;
  std::int64_t bytes;  // received by a rank (the largest over ranks), see DESIGN: counters
};

struct RedistributionPlan {
  std::vector<RedistributionStep> steps;
  std::int64_t bytes = 0;  // sum over the steps
  double cost = 0;         // comparable figure: latency of each collective + bytes; 0 for free steps
};

// Every ordered pair of layouts on one mesh has a plan. Dimensions of the mesh of size 1 never communicate.
// Errors: MeshError when the meshes differ.
RedistributionPlan plan_redistribution(const Layout* from, const Layout* to, shard_math::Sizes global_sizes,
                                       std::int64_t element_size);

// The cost of one collective that lets a rank receive `bytes`: what `RedistributionPlan::cost` adds up, in
// bytes (a collective's latency counts as if it moved `latency_bytes` more).
inline constexpr double latency_bytes = 16 * 1024;

}  // namespace dtensor
