#include "parallelize/plan_check.h"

#include "parallelize/lowering.h"
#include "parallelize/read_plan.h"
#include "placements/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace dtensor {
namespace detail {
namespace {

// Of a plan that states none: its one tensor-parallel dimension.
PlanMesh mesh_of_all_ranks(const ParallelPlan& plan, std::int64_t world_size) {
  const auto& dims = plan.tensor_parallel_dims;
  if (dims.size() != 1)
    throw PlanError({fmt::format("the plan cuts over mesh dimensions [{}] and has no \"mesh\" that tells their sizes: add one",
                                 fmt::join(dims, ", "))});
  return {dims, {world_size}};
}

}  // namespace

std::optional<PlanMesh> mesh_on_world(const PlanMesh& mesh, std::int64_t world_size,
                                      std::vector<PlanFault>& faults) {
  std::int64_t known = 1;
  for (const auto size : mesh.shape)
    if (size != -1) known *= size;
  const auto open = std::find(mesh.shape.begin(), mesh.shape.end(), -1);
  PlanMesh result = mesh;
  if (open == mesh.shape.end() ? known == world_size : world_size % known == 0) {
    if (open != mesh.shape.end())
      result.shape[static_cast<std::size_t>(open - mesh.shape.begin())] = world_size / known;
    return result;
  }
  PlanFault fault;
  fault.kind = FaultKind::mesh;
  fault.asked =
      fmt::format("mesh [{}] of shape [{}]", fmt::join(mesh.names, ", "), fmt::join(mesh.shape, ", "));
  fault.nearest = open != mesh.shape.end()
                      ? fmt::format("{} or {} ranks", std::max(world_size / known, std::int64_t{1}) * known,
                                    (world_size / known + 1) * known)
                      : fmt::format("{} ranks, or -1 for one size of the shape", known);
  faults.push_back(worded(std::move(fault),
                          fmt::format("the mesh needs {}{} ranks, but the world has {}",
                                      open != mesh.shape.end() ? "a multiple of " : "", known, world_size)));
  // What is stated can be checked all the same.
  if (open != mesh.shape.end()) return std::nullopt;
  return result;
}

}  // namespace detail

PlanMesh mesh_of_plan(const ParallelPlan& plan, std::int64_t world_size) {
  if (!plan.mesh) return detail::mesh_of_all_ranks(plan, world_size);
  std::vector<PlanFault> faults;
  auto mesh = detail::mesh_on_world(*plan.mesh, world_size, faults);
  if (!faults.empty()) throw PlanError(detail::texts(faults));
  return *mesh;
}

std::vector<PlanFault> check_plan(const ParallelPlan& plan, const ModuleDescription& module,
                                  const PlanMesh& mesh, const ModelFacts& facts) {
  return detail::lower(module, mesh, plan, facts).faults;
}

std::vector<PlanFault> check_plan(const std::string& text, const ModuleDescription& module,
                                  std::int64_t world_size, const ModelFacts& facts) {
  auto read = detail::read_plan(text);
  auto faults = std::move(read.faults);
  if (!read.readable) return faults;
  std::optional<PlanMesh> mesh;
  if (read.plan.mesh) {
    mesh = detail::mesh_on_world(*read.plan.mesh, world_size, faults);
  } else {
    const bool told = std::any_of(faults.begin(), faults.end(),
                                  [](const PlanFault& fault) { return fault.kind == FaultKind::mesh; });
    if (!told) mesh = detail::mesh_of_all_ranks(read.plan, world_size);
  }
  // Without a mesh, sizes are not checked: an empty one has no tensor-parallel dimension.
  auto more = detail::lower(module, mesh.value_or(PlanMesh{}), read.plan, facts, read.broken).faults;
  faults.insert(faults.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return faults;
}

}  // namespace dtensor
