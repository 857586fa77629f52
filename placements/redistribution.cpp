#include "placements/redistribution.h"

#include <fmt/format.h>

#include <utility>

#include "placements/error.h"
#include "placements/redistribution_search.h"

namespace dtensor {
namespace {

bool is_cut_by_another(const Layout& layout, std::int64_t tensor_dim, int mesh_dim) {
  for (int other = 0; other < layout.mesh_ndim(); ++other) {
    if (other != mesh_dim && layout.placement(other).is_sharded(tensor_dim)) return true;
  }
  return false;
}

RedistributionStep relabel(int mesh_dim, const Layout* before, const Layout* after) {
  const auto kind = detail::step_kind(before->placement(mesh_dim), after->placement(mesh_dim));
  return {kind.value_or(StepKind::to_partial), mesh_dim, before, after, 0};
}

Placements replaced(const Layout& layout, int mesh_dim, const Placement& placement) {
  Placements placements = layout.placements();
  placements[static_cast<std::size_t>(mesh_dim)] = placement;
  return placements;
}

}  // namespace

const char* to_string(StepKind kind) {
  switch (kind) {
    case StepKind::slice:
      return "slice";
    case StepKind::to_partial:
      return "to_partial";
    case StepKind::all_reduce:
      return "all_reduce";
    case StepKind::reduce_scatter:
      return "reduce_scatter";
    case StepKind::all_gather:
      return "all_gather";
    case StepKind::all_to_all:
      return "all_to_all";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown StepKind");
}

bool communicates(const RedistributionStep& step) {
  return step.kind != StepKind::slice && step.kind != StepKind::to_partial &&
         step.before->mesh().size(step.mesh_dim) > 1;
}

// Mesh dimensions of size 1 are taken out of the way: their placement is a label, in whatever order they cut,
// and must neither cost anything nor keep a real cut from being the innermost. Three parts:
//   1. each takes its final label, or Replicate where its cut has to be fitted into the order of others;
//   2. the search moves all other mesh dimensions;
//   3. the labels still missing are added, in the target's cut order.
RedistributionPlan plan_redistribution(const Layout* from, const Layout* to, shard_math::Sizes global_sizes,
                                       std::int64_t element_size) {
  if (from->mesh_pointer() != to->mesh_pointer()) {
    throw MeshError(fmt::format("cannot redistribute from {} to {}: the meshes differ", from->to_string(),
                                to->to_string()));
  }
  const MeshLayout* mesh = from->mesh_pointer();
  const std::vector<std::int64_t> origin(static_cast<std::size_t>(mesh->ndim()), 0);
  for (const auto* layout : {from, to})
    shard_math::local_sizes(*layout, global_sizes, origin);  // throws if unfit
  RedistributionPlan plan;
  if (from == to) return plan;

  const Layout* now = from;
  Placements goal_placements = to->placements();
  for (int mesh_dim = 0; mesh_dim < mesh->ndim(); ++mesh_dim) {
    if (mesh->size(mesh_dim) > 1) continue;
    const auto& wanted = to->placement(mesh_dim);
    const bool alone = !wanted.is_sharded() || (!is_cut_by_another(*from, wanted.dim(), mesh_dim) &&
                                                !is_cut_by_another(*to, wanted.dim(), mesh_dim));
    const Placement label = alone ? wanted : Replicate();
    goal_placements[static_cast<std::size_t>(mesh_dim)] = label;
    if (now->placement(mesh_dim) == label) continue;
    const Layout* after = now->with(mesh_dim, label);
    plan.steps.push_back(relabel(mesh_dim, now, after));
    now = after;
  }

  const Layout* goal = Layout::of(mesh, goal_placements, to->cut_order());
  for (auto& step : detail::search_steps(now, goal, global_sizes, element_size)) {
    plan.bytes += step.bytes;
    plan.cost += detail::step_cost(step);
    plan.steps.push_back(step);
  }

  now = goal;
  for (const int mesh_dim : to->cut_order()) {
    if (now->placement(mesh_dim) == to->placement(mesh_dim)) continue;
    const Layout* after =
        Layout::of(mesh, replaced(*now, mesh_dim, to->placement(mesh_dim)), to->cut_order());
    plan.steps.push_back(relabel(mesh_dim, now, after));
    now = after;
  }
  TORCH_INTERNAL_ASSERT(now == to, "a plan ends at ", now->to_string(), " instead of ", to->to_string());
  return plan;
}

}  // namespace dtensor
