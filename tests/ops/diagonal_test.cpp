#include "brute_force.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  // Square, wide, high, within other dimensions; the diagonal has all rows, all columns, both or neither.
  for (const auto& shape : {Numbers{5, 5}, Numbers{3, 5}, Numbers{5, 3}, Numbers{2, 4, 4}, Numbers{1, 3, 2}}) {
    const auto last = static_cast<std::int64_t>(shape.size()) - 1;
    for (const std::int64_t offset : {0, 1, -1, 2, -4}) {
      const auto size = values(shape).diagonal(offset, -2, -1).sizes().vec();
      all.push_back(program("diagonal", {values(shape)}, [offset](const Tensors& x) {
                      return Tensors{x[0].diagonal(offset, -2, -1) * 2, x[0].diagonal(offset, -1, -2) * 3};
                    }).reaches({"aten::diagonal", "aten::diagonal_backward"}).at_most(24));
      all.push_back(sample("aten::diagonal_copy", {values(shape), offset, last - 1, last}).at_most(24));
      all.push_back(sample("aten::diagonal_scatter", {values(shape), values(size), offset, last - 1, last}).at_most(24));
    }
  }
  for (const std::int64_t offset : {0, 1, -2}) {
    all.push_back(sample("aten::diag_embed", {values({3, 4}), offset, 0, 2}).at_most(24));
    all.push_back(sample("aten::diag_embed", {values({5}), offset, 0, 1}).at_most(24));
  }
  // Writing through the view reaches the matrix. Where rows and columns are cut, or one in an order of its own, the view
  // has moved.
  all.push_back(program("diagonal.mul_", {values({5, 5})}, [](const Tensors& x) {
                  auto y = x[0] * 1;
                  y.diagonal().mul_(3);
                  return Tensors{y};
                }).reaches({"aten::diagonal"}).refuses([](const Combination& placed) {
                  return placed[0] && (placed[0]->size() > 1 || placed[0]->front().is_interleaved());
                }));
  return all;
}

const SampleFile file("diagonal", samples);
TEST_CASE("diagonal") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
