#include "parallelize/optimizer_state.h"

#include "dtensor/dtensor.h"
#include "placements/error.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim.h>

#include <typeinfo>

namespace dtensor {
namespace {

using Visitor = std::function<void(at::Tensor&)>;

// Whether `state` is of this type, whose tensors were visited then.
template <typename State, typename... Tensors>
bool visit_as(torch::optim::OptimizerParamState& state, const Visitor& visitor, Tensors... tensors) {
  auto* known = dynamic_cast<State*>(&state);
  if (!known) return false;
  (visitor((known->*tensors)()), ...);
  return true;
}

// The non-const accessor that TORCH_ARG declares.
template <typename State>
using Accessor = at::Tensor& (State::*)() noexcept;

bool visit_lbfgs(torch::optim::OptimizerParamState& state, const Visitor& visitor) {
  auto* known = dynamic_cast<torch::optim::LBFGSParamState*>(&state);
  if (!known) return false;
  for (auto* tensor : {&known->d(), &known->H_diag(), &known->prev_flat_grad()}) visitor(*tensor);
  for (auto* list : {&known->old_dirs(), &known->old_stps(), &known->ro()})
    for (auto& tensor : *list) visitor(tensor);
  if (known->al())
    for (auto& tensor : *known->al()) visitor(tensor);
  return true;
}

bool visit(torch::optim::OptimizerParamState& state, const Visitor& visitor) {
  using namespace torch::optim;
  using Adam = Accessor<AdamParamState>;
  using AdamW = Accessor<AdamWParamState>;
  using Rms = Accessor<RMSpropParamState>;
  return visit_as<AdamParamState>(state, visitor, Adam(&AdamParamState::exp_avg),
                                  Adam(&AdamParamState::exp_avg_sq),
                                  Adam(&AdamParamState::max_exp_avg_sq)) ||
         visit_as<AdamWParamState>(state, visitor, AdamW(&AdamWParamState::exp_avg),
                                   AdamW(&AdamWParamState::exp_avg_sq),
                                   AdamW(&AdamWParamState::max_exp_avg_sq)) ||
         visit_as<SGDParamState>(state, visitor, Accessor<SGDParamState>(&SGDParamState::momentum_buffer)) ||
         visit_as<RMSpropParamState>(state, visitor, Rms(&RMSpropParamState::square_avg),
                                     Rms(&RMSpropParamState::momentum_buffer),
                                     Rms(&RMSpropParamState::grad_avg)) ||
         visit_as<AdagradParamState>(state, visitor, Accessor<AdagradParamState>(&AdagradParamState::sum)) ||
         visit_lbfgs(state, visitor);
}

}  // namespace

void detail::visit_optimizer_state(torch::optim::Optimizer& optimizer,
                                   const std::function<void(const at::Tensor&, at::Tensor&)>& visitor) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || !found->second) continue;
      auto& state = *found->second;
      const bool known = visit(state, [&](at::Tensor& tensor) {
        if (tensor.defined()) visitor(parameter, tensor);
      });
      if (!known)
        throw UnsupportedError(
            fmt::format("optimizer state of type {}: its tensors are not known here, only those of LibTorch's "
                        "optimizers. Distribute them with distribute_tensor, or apply the plan before the first step.",
                        c10::demangle(typeid(state).name())));
    }
}

void distribute_optimizer_state(torch::optim::Optimizer& optimizer, std::optional<int> source) {
  const at::NoGradGuard no_grad;
  detail::visit_optimizer_state(optimizer, [&](const at::Tensor& parameter, at::Tensor& state) {
    if (is_dtensor(state) || !is_dtensor(parameter)) return;
    const DTensor placed(parameter.detach());
    const auto mesh = placed.mesh();
    const auto placements = state.sizes() == parameter.sizes()
                                ? placed.placements()
                                : Placements(static_cast<std::size_t>(mesh.ndim()), Replicate());
    state = distribute_tensor(state.detach().to(mesh.device()), mesh, placements, {source});
  });
}

void gather_optimizer_state(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  detail::visit_optimizer_state(optimizer, [](const at::Tensor&, at::Tensor& state) {
    if (is_dtensor(state)) state = DTensor(state.detach()).full_tensor();
  });
}

}  // namespace dtensor
