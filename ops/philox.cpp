#include "ops/philox.h"

#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// Writes value(global linear index) for every local element, in row-major order. The elements of one row lie next to each
// other in the global index, run by run.
template <typename Element, typename Value>
void write_rows(Element* out, const Draw& draw, Value&& value) {
  const auto sizes = draw.sizes;
  const auto ndim = sizes.size();
  if (ndim == 0) {
    *out = static_cast<Element>(value(0));
    return;
  }
  std::vector<std::vector<shard_math::Interval>> runs(ndim);
  for (std::size_t dim = 0; dim < ndim; ++dim)
    runs[dim] = shard_math::local_intervals(draw.layout, static_cast<std::int64_t>(dim), sizes[dim], draw.mesh.coordinate);
  const auto write = [&](auto&& self, std::size_t dim, std::uint64_t before) -> void {
    before *= static_cast<std::uint64_t>(sizes[dim]);
    for (const auto& run : runs[dim]) {
      const auto begin = before + static_cast<std::uint64_t>(run.offset), end = begin + static_cast<std::uint64_t>(run.size);
      for (auto index = begin; index < end; ++index)
        if (dim + 1 < ndim)
          self(self, dim + 1, index);
        else
          *out++ = static_cast<Element>(value(index));
    }
  };
  write(write, 0, 0);
}

template <typename Value>
void fill(at::Tensor& local, const Draw& draw, Value&& value) {
  if (local.numel() == 0) return;
  if (local.is_cpu() && local.is_contiguous()) switch (local.scalar_type()) {
      case at::kDouble: return write_rows(local.data_ptr<double>(), draw, value);
      case at::kFloat: return write_rows(local.data_ptr<float>(), draw, value);
      case at::kLong: return write_rows(local.data_ptr<std::int64_t>(), draw, value);
      case at::kBool: return write_rows(local.data_ptr<bool>(), draw, value);
      default: break;
    }
  using Element = decltype(value(std::uint64_t{}));
  auto host = at::empty(local.sizes(), at::TensorOptions().dtype(c10::CppTypeToScalarType<Element>::value));
  write_rows(host.template data_ptr<Element>(), draw, value);
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
Draw for_imaginary(Draw draw) {
  draw.state.seed ^= 0x9E3779B97F4A7C15u;
  return draw;
}

// Digits of a floating type's numbers, the leading one included.
int digits(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return std::numeric_limits<float>::digits;
    case at::kHalf: return std::numeric_limits<c10::Half>::digits;
    case at::kBFloat16: return std::numeric_limits<c10::BFloat16>::digits;
    default: return std::numeric_limits<double>::digits;
  }
}

}  // namespace

void fill_uniform(at::Tensor& local, const Draw& draw, double from, double to) {
  if (local.is_complex()) {
    auto real = at::real(local), imaginary = at::imag(local);
    fill_uniform(real, draw, from, to);
    return fill_uniform(imaginary, for_imaginary(draw), from, to);
  }
  Generator generator(draw.state);
  // Rounding may give `to`: the next smaller number of the type stands in.
  const double last = to - std::ldexp(std::max(std::abs(from), std::abs(to)), -digits(local.scalar_type()));
  const double width = to - from, largest = std::max(from, last);
  fill(local, draw, [&](std::uint64_t index) { return std::min(from + width * uniform(generator.at(index)), largest); });
}

void fill_normal(at::Tensor& local, const Draw& draw, double mean, double deviation) {
  if (local.is_complex()) {  // the variance is shared by the two parts
    auto real = at::real(local), imaginary = at::imag(local);
    fill_normal(real, draw, mean, deviation / std::numbers::sqrt2);
    return fill_normal(imaginary, for_imaginary(draw), 0, deviation / std::numbers::sqrt2);
  }
  Generator generator(draw.state);
  fill(local, draw, [&](std::uint64_t index) { return mean + deviation * normal(generator.at(index)); });
}

void fill_bernoulli(at::Tensor& local, const Draw& draw, double probability) {
  Generator generator(draw.state);
  fill(local, draw, [&](std::uint64_t index) { return uniform(generator.at(index)) < probability; });
}

void fill_integers(at::Tensor& local, const Draw& draw, std::int64_t from, std::uint64_t range) {
  Generator generator(draw.state);
  fill(local, draw, [&](std::uint64_t index) {
    const auto bits = joined(generator.at(index));
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(from) + (range == 0 ? bits : bits % range));
  });
}

}  // namespace dtensor::detail
