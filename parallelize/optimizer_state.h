// What an optimizer keeps per parameter, as it follows the parameter on and off a mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace torch::optim {
class Optimizer;
}

namespace dtensor {

// Turns plain state into DTensors on the mesh of its parameter: placed as the parameter where it has its sizes
// (moments), whole otherwise (LBFGS's flat histories). For an optimizer that stepped before the plan was applied;
// parallelize_module does it for ApplyOptions::optimizers. `source`: as there. State that is distributed already, and
// of plain parameters, stays. dtypes, numbers and step counters stay too. Errors: UnsupportedError for an optimizer
// whose state is of a type unknown here.
void distribute_optimizer_state(torch::optim::Optimizer& optimizer, std::optional<int> source = 0);

// The opposite: whole, plain tensors on every rank.
void gather_optimizer_state(torch::optim::Optimizer& optimizer);

namespace detail {
// Every state tensor, with the parameter that it belongs to, in the order of the parameter groups: the same on all
// ranks. The visitor may replace it. Errors: as distribute_optimizer_state.
void visit_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const std::function<void(const at::Tensor& parameter, at::Tensor& state)>& visitor);
}  // namespace detail

}  // namespace dtensor
