#include "brute_force.h"

#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& dims : {Numbers{0}, Numbers{2}, Numbers{1, 2}}) {
    const auto real = values({5, 2, 4});
    const auto complex = at::complex(values({5, 3, 4}), values({5, 3, 4}));
    all.push_back(sample("aten::_fft_r2c", {real, dims, 0, true}).any_strides());
    all.push_back(sample("aten::_fft_r2c", {real, dims, 1, false}).without_gradient().any_strides());
    all.push_back(sample("aten::_fft_c2c", {complex, dims, 0, true}).any_strides());
    all.push_back(
        sample("aten::_fft_c2r", {complex, dims, 0, 2 * (complex.size(dims.back()) - 1)}).any_strides());
  }
  return all;
}

const SampleFile file("fourier", samples);
TEST_CASE("Fourier transforms") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
