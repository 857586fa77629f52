#include "brute_force.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, std::vector<c10::IValue> arguments) -> Sample& {
    all.push_back(sample(op, std::move(arguments)).at_most(36));
    return all.back();
  };
  for (const auto& shape : {Numbers{5, 3}, Numbers{3, 4, 2}, Numbers{7}, Numbers{1, 4}, Numbers{0, 3}})
    add("aten::masked_scatter", {values(shape), booleans(shape), values({30})});
  // Mask or tensor broadcast; more source than is marked; none marked.
  add("aten::masked_scatter", {values({5, 3}), booleans({3}), values({4, 5})});
  add("aten::masked_scatter", {values({3}), booleans({4, 3}), values({12})});
  add("aten::masked_scatter", {values({4, 1}), booleans({1, 3}), values({12})});
  add("aten::masked_scatter", {values({4, 3}), booleans({4, 3}).logical_and(booleans({4, 3}).logical_not()), values({12})});
  add("aten::masked_scatter_", {values({5, 3}), booleans({5, 3}), values({15})}).refuses_pending_self();
  for (const bool accumulate : {false, true})
    for (const auto& shape : {Numbers{5, 3}, Numbers{2, 4, 3}, Numbers{7}}) {
      const auto count = values(shape).numel();
      const auto places = values({count}).argsort().slice(0, 0, 6).contiguous();
      add("aten::put", {values(shape), places.view({2, 3}), values({6}), accumulate});
      add("aten::put", {values(shape), places - count, values({3, 2}), accumulate});
    }
  add("aten::put", {values({4, 3}), integers({8}, 0, 12), values({8}), true});
  add("aten::put", {values({4, 3}), integers({0}, 0, 12), values({0}), false});
  return all;
}

const SampleFile file("flat scatter", samples);
TEST_CASE("flat scatter") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
