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

// Makes a tensor and has `fill` draw its values in place.
template <typename Fill>
DTensor draw(c10::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements, const at::TensorOptions& options,
             Fill&& fill) {
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
    if (mesh.is_member()) fill(result);
    if (pending && mesh.is_member()) result = result.redistribute(placements);
  }
  if (requires_grad) result.set_requires_grad(true);
  return result;
}

}  // namespace

DTensor rand(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return draw(sizes, mesh, placements, options, [](DTensor& result) { result.uniform_(0, 1); });
}
DTensor randn(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return draw(sizes, mesh, placements, options, [](DTensor& result) { result.normal_(0, 1); });
}
DTensor randint(std::int64_t low, std::int64_t high, c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                at::TensorOptions options) {
  TORCH_CHECK(low < high, "randint expects low < high, but got ", low, " >= ", high);
  return draw(sizes, mesh, placements, options, [&](DTensor& result) { result.random_(low, high); });
}
DTensor randperm(std::int64_t n, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got ", n);
  TORCH_CHECK(placements.size() == static_cast<std::size_t>(mesh.ndim()), "randperm takes one placement per mesh dimension");
  // The order of n numbers, which every rank sorts for itself: no communication. Equal ones keep their order.
  const at::NoGradGuard no_grad;
  const auto keys = rand({n}, mesh, Placements(placements.size(), Replicate()), at::kDouble);
  if (!mesh.is_member()) return empty({n}, mesh, std::move(placements), options);
  const auto order = at::argsort(keys, /*stable=*/true);
  return DTensor(order.to(options.dtype())).redistribute(std::move(placements));
}

}  // namespace dtensor
