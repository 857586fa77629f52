#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& [table, places] : std::vector<std::pair<Numbers, Numbers>>{
           {{6, 4}, {2, 3}}, {{7, 3}, {5}}, {{5, 1}, {1, 2}}, {{2, 3}, {4}}, {{4, 2}, {}}, {{4, 2}, {0}}})
    for (const std::int64_t padding : {-1, 1})
      for (const bool scale : {false, true}) {
        if (scale && places.size() == 0) continue;  // the plain backward takes no scalar index here
        all.push_back(
            sample("aten::embedding", {values(table), integers(places, 0, table[0]), padding, scale, false})
                .only_dtensors());
        if (!scale) all.back().reaches({"dtensor::embedding_gradient"});
      }
  return all;
}

const SampleFile file("embedding", samples);
TEST_CASE("embedding tables") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
