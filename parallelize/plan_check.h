// The plan check: everything that is wrong with a plan, told at once, without communication and before anything
// changes.
#pragma once

#include "parallelize/module_description.h"
#include "parallelize/plan.h"
#include "parallelize/plan_fault.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

// What a program knows and neither plan nor module tells. Where a rule states "heads" or "kv_heads", that counts too.
struct ModelFacts {
  // Attention heads by module path pattern: {"blocks.*.attn.wq", 12}. A cut must give each rank whole heads, so the
  // count must be a multiple of the tensor-parallel size. For a packed QKV: of the first part.
  std::vector<std::pair<std::string, std::int64_t>> heads = {};
  std::vector<std::pair<std::string, std::int64_t>> kv_heads =
      {};  // packed QKV: of each part after the first
  std::optional<std::int64_t> sequence =
      {};                                  // length; sequence_parallel must leave no rank without a position
  std::optional<std::int64_t> batch = {};  // global; must leave no data-parallel rank without a sample
};

// All faults of a plan on a mesh of these sizes (no -1).
std::vector<PlanFault> check_plan(const ParallelPlan& plan, const ModuleDescription& module,
                                  const PlanMesh& mesh, const ModelFacts& facts = {});
// The same from the text, faults of the text included: a rule that cannot be read hides only what depends on its
// style. The mesh is the plan's on a world of so many ranks; a plan without one gets all of them along its
// tensor-parallel dimension.
std::vector<PlanFault> check_plan(const std::string& text, const ModuleDescription& module,
                                  std::int64_t world_size, const ModelFacts& facts = {});

// The mesh of a plan on a world of so many ranks, without -1. Errors: PlanError when they do not fit.
PlanMesh mesh_of_plan(const ParallelPlan& plan, std::int64_t world_size);

namespace detail {
// A plan's mesh on a world: its sizes without -1, or a fault.
std::optional<PlanMesh> mesh_on_world(const PlanMesh& mesh, std::int64_t world_size,
                                      std::vector<PlanFault>& faults);
}  // namespace detail

}  // namespace dtensor
