#include "ops/philox.h"

#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>
#include <map>
#include <numbers>

namespace dtensor::detail {
namespace {

struct WorldRandom {
  std::uint64_t seed = 0;
  std::map<const MeshLayout*, PhiloxState> meshes;
};

// 64 random bits of one element: half of a Philox block, whose number is the element's global index / 2.
class Generator {
 public:
  explicit Generator(PhiloxState state) : state_(state) {}
  struct Bits {
    std::uint32_t high, low;
  };
  Bits at(std::uint64_t index) {
    const std::uint64_t block = index / 2;
    if (block != block_ || !filled_) {
      at::Philox4_32 engine(state_.seed, block, state_.step);
      for (auto& lane : lanes_) lane = engine();
      block_ = block;
      filled_ = true;
    }
    const std::size_t half = (index % 2) * 2;
    return {lanes_[half], lanes_[half + 1]};
  }

 private:
  PhiloxState state_;
  std::uint64_t block_ = 0;
  bool filled_ = false;
  std::uint32_t lanes_[4] = {};
};

std::uint64_t joined(Generator::Bits bits) { return (static_cast<std::uint64_t>(bits.high) << 32) | bits.low; }
double uniform(Generator::Bits bits) {
  return static_cast<double>(joined(bits) >> 11) * 0x1.0p-53;  // 53 bits: exact in double, in [0, 1)
}
double normal(Generator::Bits bits) {
  // Box-Muller on two 32-bit uniforms; the first in (0, 1].
  const double a = (static_cast<double>(bits.high) + 1.0) * 0x1.0p-32, b = static_cast<double>(bits.low) * 0x1.0p-32;
  return std::sqrt(-2.0 * std::log(a)) * std::cos(2.0 * std::numbers::pi * b);
}

// Calls value(global linear index) for every local element in row-major order of the local tensor. The runs of each
// dimension are walked as an odometer; the last dimension's runs are contiguous in the global index.
template <typename Element, typename Value>
void fill(at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes, const MeshState& mesh, Value&& value) {
  if (local.numel() == 0) return;
  const auto ndim = sizes.size();
  auto host = at::empty(local.sizes(), at::TensorOptions().dtype(c10::CppTypeToScalarType<Element>::value));
  auto* out = host.template data_ptr<Element>();
  std::vector<std::vector<std::int64_t>> indices(ndim);  // global index of each local index, per dimension
  for (std::size_t dim = 0; dim < ndim; ++dim)
    for (const auto& run : shard_math::local_intervals(layout, static_cast<std::int64_t>(dim), sizes[dim], mesh.coordinate))
      for (std::int64_t i = 0; i < run.size; ++i) indices[dim].push_back(run.offset + i);
  std::vector<std::size_t> position(ndim, 0);
  for (std::int64_t count = local.numel(), element = 0; element < count; ++element) {
    std::uint64_t global = 0;
    for (std::size_t dim = 0; dim < ndim; ++dim)
      global = global * static_cast<std::uint64_t>(sizes[dim]) + static_cast<std::uint64_t>(indices[dim][position[dim]]);
    out[element] = value(global);
    for (std::size_t dim = ndim; dim-- > 0;) {
      if (++position[dim] < indices[dim].size()) break;
      position[dim] = 0;
    }
  }
  local.copy_(host);
}

}  // namespace

PhiloxState& philox_state(MeshState& mesh) {
  auto& random = mesh.world->slot<WorldRandom>();
  return random.meshes.try_emplace(mesh.layout, PhiloxState{random.seed, 0}).first->second;
}

void seed_world(World& world, std::uint64_t seed) {
  auto& random = world.slot<WorldRandom>();
  random.seed = seed;
  for (auto& [layout, state] : random.meshes) state = {seed, 0};
}

PhiloxState next_philox(MeshState& mesh) {
  auto& state = philox_state(mesh);
  const auto taken = state;
  ++state.step;
  return taken;
}

namespace {

// The same draw for the imaginary parts, from another key.
PhiloxState for_imaginary(PhiloxState state) { return {state.seed ^ 0x9E3779B97F4A7C15u, state.step}; }

// Fills `local`, or both its parts, by draw(tensor of real numbers, state).
template <typename Draw>
void fill_parts(at::Tensor& local, PhiloxState state, Draw&& draw) {
  if (!local.is_complex()) return draw(local, state);
  auto real = at::real(local), imaginary = at::imag(local);
  draw(real, state);
  draw(imaginary, for_imaginary(state));
}

}  // namespace

void fill_uniform(at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes, const MeshState& mesh, PhiloxState state) {
  fill_parts(local, state, [&](at::Tensor& part, PhiloxState part_state) {
    Generator generator(part_state);
    // Rounding to a shorter type may give 1: the largest value below 1 of that type stands in.
    const double below_one = part.scalar_type() == at::kFloat      ? 1.0 - 0x1.0p-24
                             : part.scalar_type() == at::kBFloat16 ? 1.0 - 0x1.0p-8
                             : part.scalar_type() == at::kHalf     ? 1.0 - 0x1.0p-11
                                                                   : 1.0 - 0x1.0p-53;
    fill<double>(part, layout, sizes, mesh,
                 [&](std::uint64_t index) { return std::min(uniform(generator.at(index)), below_one); });
  });
}

void fill_normal(at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes, const MeshState& mesh, PhiloxState state) {
  fill_parts(local, state, [&](at::Tensor& part, PhiloxState part_state) {
    Generator generator(part_state);
    fill<double>(part, layout, sizes, mesh, [&](std::uint64_t index) { return normal(generator.at(index)); });
  });
}

void fill_integers(at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes, const MeshState& mesh, PhiloxState state,
                   std::int64_t from, std::uint64_t range) {
  Generator generator(state);
  fill<std::int64_t>(local, layout, sizes, mesh, [&](std::uint64_t index) {
    const auto bits = joined(generator.at(index));
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(from) + (range == 0 ? bits : bits % range));
  });
}

}  // namespace dtensor::detail
