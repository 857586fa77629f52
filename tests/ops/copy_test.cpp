#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const std::vector<Numbers> shapes = {{5, 3}, {4, 2}, {1, 3}, {}, {0, 3}};
  for (const auto& shape : shapes) {
    const auto x = values(shape);
    all.push_back(sample("aten::clone", {x}).any_pending());
    all.push_back(sample("aten::detach", {x}).any_pending());
    all.push_back(sample("aten::alias", {x}).any_pending());
    all.push_back(sample("aten::lift_fresh", {x}).any_pending().without_gradient());
    all.push_back(sample("aten::_to_copy", {x, at::kFloat}).any_pending().without_gradient());
    all.push_back(sample("aten::_to_copy", {x, at::kLong}).any_pending());
    all.push_back(sample("aten::_to_copy", {integers(shape, -9, 9), at::kDouble}));
    all.push_back(sample("aten::_neg_view", {x}).any_pending().without_gradient());
    all.push_back(sample("aten::_conj", {at::complex(x, values(shape))}));
    all.push_back(sample("aten::equal", {x, x.clone()}));
    all.push_back(sample("aten::equal", {x, x + 1}));
  }
  all.push_back(sample("aten::_local_scalar_dense", {values({})}).any_pending());
  all.push_back(sample("aten::_local_scalar_dense", {values({1})}).any_pending());
  all.push_back(sample("aten::_local_scalar_dense", {integers({1, 1}, 0, 9)}));
  for (const auto& shape : {Numbers{5, 3}, Numbers{3}, Numbers{5, 1}, Numbers{}}) {
    all.push_back(sample("aten::copy_", {values({5, 3}), values(shape)}));
    all.push_back(sample("aten::copy_", {values({5, 3}), integers(shape, -5, 5)}));
  }
  all.push_back(sample("aten::copy_", {integers({4, 2}, -5, 5), values({4, 2})}));
  all.push_back(
      program("cast to bfloat16 and back", {integers({5, 3}, -9, 9, at::kDouble)}, [](const Tensors& x) {
        return Tensors{x[0].to(at::kBFloat16).to(at::kDouble)};
      }).without_gradient());
  all.push_back(program("detach_ of a copy", {values({5, 3})},
                        [](const Tensors& x) {
                          auto copy = x[0].clone();
                          copy.detach_();
                          return Tensors{copy};
                        })
                    .any_pending()
                    .without_gradient());
  all.push_back(program("write through detach", {values({5, 3})}, [](const Tensors& x) {
                  auto copy = x[0].clone();
                  copy.detach().mul_(2);
                  return Tensors{copy};
                }).without_gradient());
  all.push_back(
      program("conjugate, then use", {at::complex(values({5, 3}), values({5, 3}))}, [](const Tensors& x) {
        return Tensors{x[0].conj() * x[0], at::real(x[0].conj())};
      }));
  all.push_back(
      program("clone of a transposed tensor", {values({5, 3})}, [](const Tensors& x) {
        return Tensors{x[0].t().clone(), x[0].t().contiguous(), x[0].t().clone(at::MemoryFormat::Contiguous)};
      }).any_pending());
  return all;
}

const SampleFile file("copies", samples);
TEST_CASE("copies, casts, read-outs") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
