#include "parallelize/explain_plan.h"

#include "parallelize/lowering.h"
#include "placements/error.h"
#include "placements/shard_math.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

namespace dtensor {

ApplyReport explain_plan(const ParallelPlan& plan, const ModuleDescription& module, const PlanMesh& mesh,
                         std::int64_t rank) {
  auto lowered = detail::lower(module, mesh, plan, {});
  if (!lowered.faults.empty()) throw PlanError(detail::texts(lowered.faults));
  const auto* layout = MeshLayout::of(c10::DeviceType::CPU, mesh.shape, mesh.names);
  const auto coordinate = layout->coordinate_of(rank);
  if (!coordinate) throw MeshError(fmt::format("rank {} is not in the mesh {}", rank, layout->to_string()));
  ApplyReport report;
  report.notes = lowered.notes;
  for (const auto& entry : lowered.tensors) {
    const auto* placed = Layout::of(layout, entry.placements);
    AppliedTensor tensor;
    tensor.name = entry.source.name;
    tensor.aliases = entry.source.aliases;
    tensor.sizes = entry.source.sizes;
    tensor.local_sizes = shard_math::local_sizes(*placed, tensor.sizes, *coordinate);
    tensor.placements = entry.placements;
    tensor.bytes = c10::multiply_integers(tensor.sizes) * entry.source.element_size;
    tensor.local_bytes = c10::multiply_integers(tensor.local_sizes) * entry.source.element_size;
    if (entry.rule) tensor.rule = plan.rules[*entry.rule].match;
    tensor.buffer = entry.source.buffer;
    report.tensors.push_back(std::move(tensor));
  }
  return report;
}

}  // namespace dtensor
