#include "dtensor/random.h"

#include "dtensor/dtensor.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace dtensor {

void manual_seed(std::uint64_t seed) { detail::seed_world(World::current(), seed); }

RandomState RandomState::get(const DeviceMesh& mesh) { return RandomState(detail::philox_state(*mesh.state())); }
void RandomState::set(const DeviceMesh& mesh) const { detail::philox_state(*mesh.state()) = state_; }

FixedRandomScope::FixedRandomScope(const DeviceMesh& mesh, const RandomState& state)
    : mesh_(mesh), former_(RandomState::get(mesh)) {
  state.set(mesh);
}
FixedRandomScope::~FixedRandomScope() { former_.set(mesh_); }

namespace {
DTensor draw(c10::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements, const at::TensorOptions& options,
             bool uniform) {
  // A pending tensor of random values: drawn whole, then split into parts that reduce to it.
  Placements drawn = placements;
  bool pending = false;
  for (auto& placement : drawn)
    if (placement.is_partial()) {
      placement = Replicate();
      pending = true;
    }
  const bool requires_grad = options.requires_grad();
  auto result = empty(sizes, mesh, drawn, options.requires_grad(false));
  {
    const at::NoGradGuard no_grad;
    if (mesh.is_member()) {
      if (uniform)
        result.uniform_(0, 1);
      else
        result.normal_(0, 1);
    }
    if (pending && mesh.is_member()) result = result.redistribute(placements);
  }
  if (requires_grad) result.set_requires_grad(true);
  return result;
}
}  // namespace

DTensor rand(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return draw(sizes, mesh, placements, options, true);
}
DTensor randn(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return draw(sizes, mesh, placements, options, false);
}

}  // namespace dtensor
