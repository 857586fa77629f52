#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, std::vector<Numbers> shapes) {
    std::vector<c10::IValue> arguments;
    for (auto& shape : shapes) arguments.emplace_back(values(shape));
    all.push_back(sample(op, std::move(arguments)));
  };
  add("aten::mm", {{4, 6}, {6, 2}});
  add("aten::mm", {{5, 3}, {3, 7}});
  add("aten::mm", {{1, 4}, {4, 1}});
  add("aten::mm", {{2, 1}, {1, 3}});
  add("aten::mm", {{0, 3}, {3, 2}});
  add("aten::mm", {{3, 0}, {0, 2}});
  add("aten::bmm", {{3, 2, 5}, {3, 5, 2}});
  add("aten::bmm", {{1, 4, 3}, {1, 3, 2}});
  add("aten::mv", {{5, 3}, {3}});
  add("aten::mv", {{4, 1}, {1}});
  add("aten::dot", {{5}, {5}});
  add("aten::dot", {{1}, {1}});
  add("aten::vdot", {{4}, {4}});
  for (const auto& shape : {Numbers{5, 3, 4}, Numbers{2, 3, 2, 4}, Numbers{6, 4}, Numbers{1, 5, 4}})
    all.push_back(sample("aten::matmul", {values(shape), values({4, 5})})
                      .only_dtensors()
                      .reaches({"dtensor::weight_gradient"}));
  for (const auto& [a, b] :
       std::vector<std::pair<Numbers, Numbers>>{{{2, 3, 5, 4}, {2, 3, 4, 3}},
                                                {{3, 5, 2}, {3, 2, 5}},
                                                {{2, 5, 3}, {3}},
                                                {{2, 1, 5, 3}, {4, 3, 2}},
                                                {{4, 2, 3}, {3, 1, 3, 5}}})
    all.push_back(sample("aten::matmul", {values(a), values(b)}).only_dtensors());
  for (const auto& [a, b] : std::vector<std::pair<Numbers, Numbers>>{
           {{3}, {3}}, {{5, 3}, {3}}, {{3}, {3, 4}}, {{3}, {2, 3, 4}}})
    all.push_back(sample("aten::matmul", {values(a), values(b)}).only_dtensors().falls_back());
  for (const auto& shape : {Numbers{3, 2, 4}, Numbers{1, 2, 4}, Numbers{3, 1, 1}})
    all.push_back(sample("aten::baddbmm", {values(shape), values({3, 2, 5}), values({3, 5, 4}), 0.5, 2.0}));
  all.push_back(sample("aten::baddbmm", {values({4}), values({3, 2, 5}), values({3, 5, 4})}));
  for (const auto& self : {values({5}), values({1}), values({})})
    all.push_back(sample("aten::addmv", {self, values({5, 3}), values({3})}));
  for (const auto& self : {values({5, 3}), values({3})}) all.push_back(sample("aten::addr", {self, values({5}), values({3})}));
  for (const auto& self : {values({5, 2}), values({5, 1})})
    all.push_back(sample("aten::addbmm", {self, values({3, 5, 4}), values({3, 4, 2})}));
  // As bilinear and einsum call it.
  all.push_back(sample("aten::_trilinear", {values({5, 3}), values({4, 3, 6}), values({5, 6}), Numbers{1, 3}, Numbers{0},
                                            Numbers{1, 2}, Numbers{2, 3}, 1}));
  all.push_back(sample("aten::_trilinear", {values({5, 3}), values({4, 3}), values({5, 4}), Numbers{1}, Numbers{0},
                                            Numbers{2}, Numbers{2}, 0}));
  for (const auto& shape : {Numbers{5, 3}, Numbers{3}, Numbers{1, 3}})
    all.push_back(program("addmm", {values(shape), values({5, 4}), values({4, 3})}, [](const Tensors& x) {
                    return Tensors{at::addmm(x[0], x[1], x[2], 0.5, 2.0)};
                  }).only_dtensors());
  for (const auto& shape : {Numbers{2, 3, 4}, Numbers{5, 4}})
    all.push_back(program("linear", {values(shape), values({3, 4}), values({3})}, [](const Tensors& x) {
                    return Tensors{at::linear(x[0], x[1], x[2])};
                  }).only_dtensors());
  all.push_back(
      program("products of transposed factors", {values({4, 5}), values({3, 4})}, [](const Tensors& x) {
        return Tensors{at::mm(x[0].t(), x[1].t()), at::matmul(x[0].t(), x[1].t())};
      }).only_dtensors());
  all.push_back(program("einsum, outer", {values({5}), values({3})},
                        [](const Tensors& x) { return Tensors{at::outer(x[0], x[1])}; }));
  return all;
}

const SampleFile file("matrix products", samples);
TEST_CASE("matrix products") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
