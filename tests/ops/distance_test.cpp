#include "brute_force.h"

#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const double p : {2.0, 1.0, 3.0})
    all.push_back(sample("aten::_cdist_forward", {values({5, 3}), values({4, 3}), p, 2})
                      .reaches({"aten::_cdist_backward"}));
  all.push_back(sample("aten::_cdist_forward", {values({3, 5, 2}), values({3, 4, 2}), 1.0, c10::IValue()}));
  all.push_back(sample("aten::_euclidean_dist", {values({5, 3}), values({4, 3})}));
  for (const std::int64_t dim : {0, 1, -1})
    all.push_back(sample("aten::renorm", {values({5, 2, 3}), 2.0, dim, 0.5}));
  return all;
}

const SampleFile file("distances", samples);
TEST_CASE("distances") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
