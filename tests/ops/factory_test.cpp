#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& shape : {Numbers{5, 3}, Numbers{4, 2}, Numbers{1, 3}, Numbers{}, Numbers{0, 3}}) {
    const auto x = values(shape);
    all.push_back(sample("aten::zeros_like", {x}).any_pending());
    all.push_back(sample("aten::ones_like", {x}).any_pending());
    all.push_back(sample("aten::ones_like", {x, at::kLong}));
    all.push_back(sample("aten::full_like", {x, 2.5}).any_pending());
    all.push_back(sample("aten::full_like", {integers(shape, 0, 3), 4}));
    for (const auto& sizes : {shape, Numbers{3, 5}, Numbers{2}}) {
      all.push_back(sample("aten::new_zeros", {x, sizes}).any_pending());
      all.push_back(sample("aten::new_ones", {x, sizes}).any_pending());
      all.push_back(sample("aten::new_full", {x, sizes, 1.5}).any_pending());
      all.push_back(
          program("new_empty, filled", {x},
                  [sizes](const Tensors& t) {
                    return Tensors{t[0].new_empty(sizes).fill_(3), t[0].new_empty(sizes, at::kLong).zero_()};
                  })
              .reaches({"aten::new_empty", "aten::fill_.Scalar", "aten::zero_"})
              .any_pending());
    }
    all.push_back(
        program("empty_like, filled", {x},
                [](const Tensors& t) {
                  return Tensors{at::empty_like(t[0]).fill_(3), at::empty_like(t[0], at::kInt).zero_()};
                })
            .reaches({"aten::empty_like"})
            .any_pending());
    all.push_back(sample("aten::fill_.Scalar", {x, 1.25}).any_pending());
    all.push_back(sample("aten::zero_", {x}).any_pending());
    all.push_back(sample("aten::fill_.Tensor", {x, values({})}).any_pending().refuses_pending_self());
  }
  all.push_back(program("new_empty_strided, filled", {values({5, 3})},
                        [](const Tensors& t) {
                          return Tensors{t[0].new_empty_strided({5, 3}, {1, 5}).fill_(3),
                                         t[0].new_empty_strided({5, 3}, {3, 1}).fill_(3),
                                         t[0].new_empty_strided({2, 2}, {1, 2}).fill_(3)};
                        })
                    .reaches({"aten::new_empty_strided"})
                    .any_pending());
  all.push_back(program("like a transposed tensor", {values({5, 3})}, [](const Tensors& t) {
                  return Tensors{at::zeros_like(t[0].t()),
                                 at::ones_like(t[0].t(), at::MemoryFormat::Contiguous),
                                 t[0].t().new_zeros({3, 5})};
                }).any_pending());
  all.push_back(program("fill through a view", {values({5, 3})}, [](const Tensors& t) {
    auto copy = t[0].clone();
    copy.t().fill_(2);
    return Tensors{copy};
  }));
  return all;
}

const SampleFile file("factories", samples);
TEST_CASE("factories and fills") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
