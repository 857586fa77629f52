#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto join = [&](const char* op, std::vector<Numbers> shapes, std::int64_t dim) {
    Tensors tensors;
    for (auto& shape : shapes) tensors.push_back(values(shape));
    all.push_back(sample(op, {tensors, dim}));
  };
  join("aten::cat", {{5, 3}, {2, 3}}, 0);
  join("aten::cat", {{4, 2}, {4, 1}, {4, 3}}, 1);
  join("aten::cat", {{5, 3}, {5, 0}}, -1);
  join("aten::cat", {{3}}, 0);
  join("aten::cat", {{1, 4}, {1, 4}}, 0);
  join("aten::stack", {{5, 3}, {5, 3}}, 0);
  join("aten::stack", {{4, 2}, {4, 2}, {4, 2}}, -1);
  join("aten::stack", {{}, {}}, 0);
  join("aten::stack", {{1, 3}, {1, 3}}, 1);
  const auto add = [&](const char* op, Numbers shape, const std::vector<c10::IValue>& rest) -> Sample& {
    all.push_back(sample(op, {values(std::move(shape))}, rest).any_pending());
    return all.back();
  };
  for (const auto& shape : {Numbers{5, 3}, Numbers{4, 2, 3}, Numbers{2, 6}, Numbers{1, 4}})
    for (const std::int64_t dim : {0, -1}) {
      const auto size = shape[dim == 0 ? 0 : shape.size() - 1];
      add("aten::split.Tensor", shape, {2, dim});
      add("aten::split_with_sizes", shape, {Numbers{1, size - 1}, dim});
      add("aten::unbind.int", shape, {dim});
      add("aten::slice.Tensor", shape, {dim, 1, size}).reaches({"aten::slice_backward"});
      add("aten::slice.Tensor", shape, {dim, c10::IValue(), c10::IValue(), 1});
      add("aten::slice.Tensor", shape, {dim, 0, -1});
      add("aten::slice.Tensor", shape, {dim, 0, 100, 2});
      add("aten::slice.Tensor", shape, {dim, 3, 2});
      add("aten::select.int", shape, {dim, -1}).reaches({"aten::select_backward"});
      add("aten::select.int", shape, {dim, 0});
    }
  add("aten::slice.Tensor", {0, 3}, {1, 0, 2});
  add("aten::split.Tensor", {3, 0}, {2, 0});
  all.push_back(program("chunk, then cat", {values({4, 6})}, [](const Tensors& x) {
    const auto parts = x[0].chunk(3, 1);
    return Tensors{at::cat({parts[2], parts[0]}, 1), parts[1].contiguous()};
  }));
  all.push_back(program("narrow of a transposed tensor", {values({5, 3})}, [](const Tensors& x) {
                  return Tensors{x[0].t().narrow(1, 1, 3), x[0].t().select(0, 1)};
                }).any_pending());
  return all;
}

const SampleFile file("joining and cutting", samples);
TEST_CASE("joining and cutting") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
