// Random numbers by global element index: the same values on any mesh and placement.
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as LibTorch's at::Philox4_32.
#pragma once

#include "comm/device_mesh.h"
#include "placements/layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor {

// The random state of one mesh: every random operator takes one step.
struct PhiloxState {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  friend bool operator==(const PhiloxState&, const PhiloxState&) = default;
};

namespace detail {

// The state of a mesh, kept in its World. A mesh that has none starts with the World's seed.
PhiloxState& philox_state(MeshState& mesh);
// Sets the seed of all meshes of a World, those to come included.
void seed_world(World& world, std::uint64_t seed);
// Takes the next step of a mesh's state: what one random operator draws with.
PhiloxState next_philox(MeshState& mesh);

// What one random operator draws: a tensor of global sizes `sizes`, placed by `layout`, with one step of a mesh's state.
struct Draw {
  const Layout& layout;
  c10::IntArrayRef sizes;
  const MeshState& mesh;
  PhiloxState state;
};

// Fill the local tensor of a draw; quickest where it is dense in row-major order.
// Uniform in [from, to), normal: any floating or complex dtype; real and imaginary part are drawn alike and apart.
void fill_uniform(at::Tensor& local, const Draw& draw, double from = 0, double to = 1);
void fill_normal(at::Tensor& local, const Draw& draw, double mean = 0, double deviation = 1);
// 1 with this probability, else 0: any dtype.
void fill_bernoulli(at::Tensor& local, const Draw& draw, double probability);
// Integers in [from, from + range), any dtype that holds them; a range of 0 stands for 2^64.
void fill_integers(at::Tensor& local, const Draw& draw, std::int64_t from, std::uint64_t range);

}  // namespace detail
}  // namespace dtensor
