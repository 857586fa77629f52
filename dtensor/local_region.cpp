// local_region: a custom kernel on local tensors, with gradients stated.
#include "dtensor/dtensor.h"
#include "placements/error.h"

#include <fmt/format.h>

namespace dtensor {

std::vector<at::Tensor> local_region(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const std::vector<Placements>& in_placements,
    const std::vector<Placements>& out_placements, LocalRegionOptions options) {
  if (inputs.size() != in_placements.size() || inputs.empty())
    throw PlacementError(fmt::format("local_region: {} inputs and {} input placements", inputs.size(), in_placements.size()));
  if (options.grad_placements && options.grad_placements->size() != inputs.size())
    throw PlacementError(fmt::format("local_region: {} inputs and {} gradient placements", inputs.size(),
                                     options.grad_placements->size()));
  const DeviceMesh mesh = DTensor(inputs[0]).mesh();
  // Which mesh dimensions split the work: where some input is cut there, the gradient of a whole input is a pending sum.
  std::vector<bool> split(static_cast<std::size_t>(mesh.ndim()), false);
  for (const auto& placements : in_placements)
    for (std::size_t dim = 0; dim < placements.size() && dim < split.size(); ++dim)
      split[dim] = split[dim] || placements[dim].is_sharded();
  std::vector<at::Tensor> locals;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto placed = DTensor(inputs[i]).redistribute(in_placements[i]);
    Placements gradient = placed.placements();
    for (std::size_t dim = 0; dim < gradient.size(); ++dim) {
      if (gradient[dim].is_partial()) gradient[dim] = Replicate();
      if (in_placements[i][dim].is_replicate() && split[dim]) gradient[dim] = Partial();
    }
    if (options.grad_placements) gradient = (*options.grad_placements)[i];
    locals.push_back(placed.to_local({gradient}));
  }
  const auto results = function(locals);
  if (results.size() != out_placements.size())
    throw PlacementError(fmt::format("local_region: the function returned {} tensors, {} output placements are given",
                                     results.size(), out_placements.size()));
  std::vector<at::Tensor> wrapped;
  for (std::size_t i = 0; i < results.size(); ++i) wrapped.push_back(from_local(results[i], mesh, out_placements[i]));
  return wrapped;
}

}  // namespace dtensor
