#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <limits>

namespace dtensor::brute {
namespace {

// Beyond what reduction_test.cpp has of these operators: several dimensions, ties, values that are no numbers.
std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  const double infinity = std::numeric_limits<double>::infinity();
  auto with_nan = values({5, 3}), with_infinity = values({5, 3});
  with_nan.select(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  with_infinity.select(0, 0).fill_(-infinity);
  with_infinity.select(1, 1).fill_(-infinity);
  for (const bool keepdim : {false, true}) {
    for (const auto& dims : {Numbers{0}, Numbers{1}, Numbers{0, 2}, Numbers{-1}}) {
      all.push_back(sample("aten::var.correction", {values({5, 2, 3}), dims, 0.0, keepdim}));
      all.push_back(sample("aten::std_mean.correction", {values({3, 2, 4}), dims, 1.0, keepdim}));
      all.push_back(sample("aten::logsumexp", {values({5, 2, 3}), dims, keepdim}));
      all.push_back(sample("aten::all.dims", {booleans({5, 2, 3}), dims, keepdim}));
      all.push_back(sample("aten::any.dims", {booleans({3, 2, 3}), dims, keepdim}));
      all.push_back(sample("aten::nansum", {with_nan, Numbers{dims[0] == 0 ? 0 : -1}, keepdim}));
      all.push_back(sample("aten::count_nonzero.dim_IntList", {integers({5, 2, 3}, 0, 2), dims}));
    }
    for (const std::int64_t dim : {0, 1}) {
      for (const auto& x : {with_nan, with_infinity}) {
        all.push_back(sample("aten::argmax", {x, dim, keepdim}));
        all.push_back(sample("aten::max.dim", {x, dim, keepdim}));
        all.push_back(sample("aten::min.dim", {x, dim, keepdim}));
      }
      all.push_back(sample("aten::logsumexp", {with_infinity, Numbers{dim}, keepdim}).without_gradient());
      all.push_back(sample("aten::argmin", {integers({7, 3}, 0, 2), dim, keepdim}));
      all.push_back(sample("aten::max.dim", {booleans({5, 3}), dim, keepdim}));
      all.push_back(sample("aten::aminmax", {values({5, 3}), dim, keepdim}));
      all.push_back(sample("aten::all.dim", {integers({5, 3}, 0, 3, at::kByte), dim, keepdim}));
    }
  }
  all.push_back(sample("aten::aminmax", {values({5, 3})}));
  all.push_back(sample("aten::count_nonzero", {integers({5, 3}, 0, 2)}));
  all.push_back(sample("aten::nansum", {with_nan}));
  all.push_back(sample("aten::argmax", {values({2, 5})}));
  all.push_back(sample("aten::var.correction", {values({4, 3}), none, none, false}));
  return all;
}

const SampleFile file("statistics", samples);
TEST_CASE("statistics") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
