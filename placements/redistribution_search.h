// Inside the planner: what one step may be and what it moves, and the search for the cheapest sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "placements/redistribution.h"

namespace dtensor::detail {

// The step that turns one placement into another, or nothing where no single step does (or none is needed).
std::optional<StepKind> step_kind(const Placement& before, const Placement& after);

// See `RedistributionStep::bytes`.
std::int64_t step_bytes(StepKind kind, int mesh_dim, const Layout& before, const Layout& after,
                        shard_math::Sizes global_sizes, std::int64_t element_size);

// 0 for a step in which no rank talks, else the latency of a collective and its bytes.
double step_cost(const RedistributionStep& step);

// The cheapest steps from `start` to `goal` on one mesh; see the Note in the source. Mesh dimensions of size
// 1 must have the same placement in both, and where they cut, cut alone.
std::vector<RedistributionStep> search_steps(const Layout* start, const Layout* goal,
                                             shard_math::Sizes global_sizes, std::int64_t element_size);

}  // namespace dtensor::detail
