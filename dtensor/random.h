// Random numbers: counter-based, by global element index (see docs/semantics.md).
#pragma once

#include "comm/device_mesh.h"
#include "ops/philox.h"

#include <cstdint>

namespace dtensor {

// Seeds all meshes of the current World (those made later too). Ranks must pass the same seed.
void manual_seed(std::uint64_t seed);

// The random state of a mesh as a value: get it, keep it with a checkpoint, set it again.
class RandomState {
 public:
  static RandomState get(const DeviceMesh& mesh);
  void set(const DeviceMesh& mesh) const;
  std::uint64_t seed() const { return state_.seed; }
  std::uint64_t step() const { return state_.step; }
  explicit RandomState(PhiloxState state) : state_(state) {}
  friend bool operator==(const RandomState&, const RandomState&) = default;

 private:
  PhiloxState state_;
};

// Sets a mesh's state for a scope and restores the former one at its end: recomputation draws the same numbers again.
class FixedRandomScope {
 public:
  FixedRandomScope(const DeviceMesh& mesh, const RandomState& state);
  ~FixedRandomScope();
  FixedRandomScope(const FixedRandomScope&) = delete;
  FixedRandomScope& operator=(const FixedRandomScope&) = delete;

 private:
  DeviceMesh mesh_;
  RandomState former_;
};

}  // namespace dtensor
