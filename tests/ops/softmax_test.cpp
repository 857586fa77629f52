#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& shape : {Numbers{5, 3}, Numbers{2, 4, 3}, Numbers{1, 4}, Numbers{0, 3}, Numbers{}})
    for (const std::int64_t dim : {0, -1}) {
      all.push_back(
          sample("aten::_softmax", {values(shape), dim, false}).reaches({"aten::_softmax_backward_data"}));
      all.push_back(sample("aten::_log_softmax", {values(shape), dim, false})
                        .reaches({"aten::_log_softmax_backward_data"}));
      all.push_back(sample("aten::_safe_softmax", {values(shape), dim}));
      all.push_back(program("softmax and its logarithm", {values(shape)}, [dim](const Tensors& x) {
        return Tensors{at::softmax(x[0], dim), at::log_softmax(x[0], dim)};
      }));
    }
  all.push_back(program("softmax of a transposed tensor", {values({5, 3})}, [](const Tensors& x) {
    return Tensors{at::softmax(x[0].t(), 0), at::softmax(x[0].t(), 1)};
  }));
  return all;
}

const SampleFile file("softmax", samples);
TEST_CASE("the softmax family") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
