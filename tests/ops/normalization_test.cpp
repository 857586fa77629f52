#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  const std::vector<std::pair<Numbers, Numbers>> shapes = {
      {{5, 3}, {3}}, {{2, 3, 4}, {4}}, {{3, 2, 4}, {2, 4}}, {{1, 5}, {5}}, {{4}, {4}}};
  for (const auto& [shape, normalized] : shapes) {
    const auto weight = values(normalized, 0.5, 2), bias = values(normalized);
    all.push_back(sample("aten::native_layer_norm", {values(shape), normalized, weight, bias, 1e-5})
                      .reaches({"aten::native_layer_norm_backward"}));
    all.push_back(sample("aten::native_layer_norm", {values(shape), normalized, none, none, 1e-5}));
    all.push_back(sample("aten::native_layer_norm", {values(shape), normalized, weight, none, 1e-5}));
    all.push_back(sample("aten::_fused_rms_norm", {values(shape), normalized, weight, 1e-5}).falls_back());
    all.push_back(sample("aten::_fused_rms_norm", {values(shape), normalized, none, none}).falls_back());
    const auto sizes = normalized;
    all.push_back(program("layer_norm", {values(shape), weight, bias}, [sizes](const Tensors& x) {
                    return Tensors{at::layer_norm(x[0], sizes, x[1], x[2])};
                  }).only_dtensors());
    all.push_back(program("rms_norm", {values(shape), weight}, [sizes](const Tensors& x) {
                    return Tensors{at::rms_norm(x[0], sizes, x[1], 1e-5)};
                  }).only_dtensors());
  }
  return all;
}

const SampleFile file("normalization", samples);
TEST_CASE("layer norm and RMS norm") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
