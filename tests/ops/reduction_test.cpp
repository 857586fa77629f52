#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <limits>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  const auto add = [&](const char* op, Numbers shape, const std::vector<c10::IValue>& rest) -> Sample& {
    all.push_back(sample(op, {values(std::move(shape))}, rest));
    return all.back();
  };
  const std::vector<Numbers> shapes = {{5, 3}, {4, 2, 3}, {1, 4}, {2, 1}, {}};
  for (const auto& shape : shapes) {
    for (const char* op : {"aten::sum", "aten::mean", "aten::max", "aten::min", "aten::amax", "aten::amin",
                           "aten::prod", "aten::all", "aten::any", "aten::argmax", "aten::argmin"})
      add(op, shape, {});
    all.push_back(sample("aten::sum", {integers(shape, -9, 9)}));
    all.push_back(sample("aten::max", {integers(shape, -9, 9)}));
    all.push_back(sample("aten::min", {integers(shape, -9, 9, at::kInt)}));
    all.push_back(sample("aten::prod", {integers(shape, 1, 3)}));
    all.push_back(sample("aten::sum", {booleans(shape)}));
    all.push_back(sample("aten::all", {booleans(shape)}));
    all.push_back(sample("aten::any", {booleans(shape)}));
    all.push_back(sample("aten::amax", {booleans(shape)}));
    all.push_back(sample("aten::sum", {values(shape), at::kFloat}).without_gradient());
    all.push_back(sample("aten::mean", {integers(shape, -9, 9), at::kDouble}));
    all.push_back(sample("aten::norm.Scalar", {values(shape), 2.0}));
    for (const double order : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()})
      all.push_back(sample("aten::linalg_vector_norm", {values(shape, 0.1, 2), order}));
  }
  for (const auto& shape : {Numbers{5, 3}, Numbers{4, 1, 3}, Numbers{2, 3}})
    for (const bool keepdim : {false, true})
      for (const std::int64_t dim : {0, -1}) {
        for (const char* op :
             {"aten::sum.dim_IntList", "aten::mean.dim", "aten::amax", "aten::amin", "aten::logsumexp"})
          add(op, shape, {Numbers{dim}, keepdim});
        for (const char* op : {"aten::prod.dim_int", "aten::max.dim", "aten::min.dim", "aten::argmax",
                               "aten::argmin", "aten::all.dim", "aten::any.dim"})
          add(op, shape, {dim, keepdim});
        for (const char* op : {"aten::var.correction", "aten::std.correction", "aten::var_mean.correction",
                               "aten::std_mean.correction"})
          if (shape[dim == 0 ? 0 : shape.size() - 1] > 1) add(op, shape, {Numbers{dim}, none, keepdim});
        add("aten::norm.ScalarOpt_dim", shape, {2.0, Numbers{dim}, keepdim});
        add("aten::linalg_vector_norm", shape, {3.0, Numbers{dim}, keepdim});
        add("aten::linalg_vector_norm", shape, {0.0, Numbers{dim}, keepdim}).without_gradient();
        add("aten::linalg_vector_norm", shape,
            {-std::numeric_limits<double>::infinity(), Numbers{dim}, keepdim});
      }
  add("aten::sum.dim_IntList", {4, 2, 3}, {Numbers{0, 2}});
  add("aten::sum.dim_IntList", {4, 3}, {Numbers{}});
  add("aten::sum.dim_IntList", {0, 3}, {Numbers{0}});
  add("aten::sum.dim_IntList", {0, 3}, {Numbers{1}});
  add("aten::mean.dim", {4, 2, 3}, {Numbers{0, 1}, true});
  add("aten::mean.dim", {4, 3}, {none});
  add("aten::var.correction", {4, 3}, {});
  add("aten::std.correction", {4, 3}, {none, 0.0});
  add("aten::mean.dim", {3, 0}, {Numbers{0}});
  for (const auto& shape : {Numbers{5, 3}, Numbers{2, 4}, Numbers{1, 3}, Numbers{}})
    for (const std::int64_t dim : {0, -1}) {
      add("aten::cumsum", shape, {dim});
      add("aten::cumprod", shape, {dim});
      add("aten::sort", shape, {dim, true});
      add("aten::sort.stable", shape, {true, dim, false});
      add("aten::topk", shape, {1, dim});
    }
  add("aten::topk", {5, 3}, {2, 0, false, true});
  all.push_back(program("cumsum_", {values({5, 3})}, [](const Tensors& x) {
                  auto copy = x[0].clone();
                  return Tensors{copy.cumsum_(0)};
                }).refuses_pending_self());
  all.push_back(program("reductions of a transposed tensor", {values({5, 3, 2})}, [](const Tensors& x) {
    const auto y = x[0].transpose(0, 2);
    return Tensors{at::sum(y, {0}), at::amax(y, {1}), at::cumsum(y, 1), std::get<0>(at::sort(y, 0))};
  }));
  return all;
}

const SampleFile file("reductions", samples);
TEST_CASE("reductions") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
