#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

// The reference is a DTensor on a mesh of one: numbers depend on the global index alone.
std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& shape :
       {Numbers{5, 3}, Numbers{4, 2, 3}, Numbers{1, 4}, Numbers{2, 1}, Numbers{}, Numbers{0, 3}}) {
    const auto x = values(shape);
    all.push_back(sample("aten::native_dropout", {x, 0.5, true}).as_on_one_rank());
    all.push_back(sample("aten::native_dropout", {x, 0.5, false}).as_on_one_rank());
    all.push_back(sample("aten::uniform_", {x, -1.0, 2.0}).as_on_one_rank());
    all.push_back(sample("aten::normal_", {x, 1.0, 2.0}).as_on_one_rank());
    all.push_back(sample("aten::bernoulli_.float", {x, 0.25}).as_on_one_rank());
    all.push_back(sample("aten::bernoulli", {values(shape, 0, 1)}).as_on_one_rank());
    all.push_back(sample("aten::rand_like", {x}).as_on_one_rank().any_pending());
    all.push_back(sample("aten::randn_like", {x}).as_on_one_rank().any_pending());
    for (const char* name : {"aten::rand_like.generator", "aten::randn_like.generator"})
      all.push_back(sample(name, {x, c10::IValue()}).as_on_one_rank().any_pending());
    all.push_back(sample("aten::randint_like", {x, 9}).as_on_one_rank().without_gradient().any_pending());
    all.push_back(sample("aten::randint_like.generator", {x, 9, c10::IValue()}).as_on_one_rank().without_gradient().any_pending());
    all.push_back(sample("aten::randint_like.low_dtype", {x, -3, 9}).as_on_one_rank().without_gradient().any_pending());
    all.push_back(sample("aten::randint_like.low_generator_dtype", {x, -3, 9, c10::IValue()}).as_on_one_rank().without_gradient().any_pending());
    all.push_back(sample("aten::exponential_", {x, 2.0}).as_on_one_rank());
    all.push_back(sample("aten::cauchy_", {x, 1.0, 2.0}).as_on_one_rank());
    all.push_back(sample("aten::geometric_", {x, 0.25}).as_on_one_rank());
    all.push_back(sample("aten::log_normal_", {x, 1.0, 0.5}).as_on_one_rank());
    all.push_back(sample("aten::random_", {x}).as_on_one_rank());
    all.push_back(sample("aten::random_.to", {x, 5}).as_on_one_rank());
    all.push_back(sample("aten::random_.from", {x, -5, c10::IValue()}).as_on_one_rank());
    all.push_back(sample("aten::bernoulli.p", {x, 0.25}).as_on_one_rank().without_gradient());
    all.push_back(sample("aten::bernoulli_.Tensor", {x, values(shape, 0, 1)}).as_on_one_rank());
    all.push_back(sample("aten::normal.Tensor_float", {x, 2.0}).as_on_one_rank());
    all.push_back(sample("aten::normal.float_Tensor", {1.0, values(shape, 0, 1)}).as_on_one_rank());
    all.push_back(sample("aten::normal.Tensor_Tensor", {x, values(shape, 0, 1)}).as_on_one_rank());
    all.push_back(
        program("dropout", {x}, [](const Tensors& t) { return Tensors{at::dropout(t[0], 0.25, true)}; })
            .as_on_one_rank()
            .reaches({"aten::native_dropout_backward"}));
  }
  all.push_back(sample("aten::normal.Tensor_Tensor", {values({5, 1}), values({3}, 0, 1)}).as_on_one_rank());
  for (const bool replacement : {false, true})
    for (const auto& shape : {Numbers{6}, Numbers{5, 4}, Numbers{4, 6}, Numbers{0, 3}})
      all.push_back(sample("aten::multinomial", {values(shape, 0, 1) + 0.1, 3, replacement}).as_on_one_rank());
  for (auto& one : all)
    if (one.in_place) one.refuses_pending_self();
  all.push_back(program("numbers drawn into a transposed tensor", {values({5, 3})},
                        [](const Tensors& t) {
                          auto copy = t[0].clone();
                          copy.t().uniform_();
                          return Tensors{copy, std::get<0>(at::native_dropout(t[0].t(), 0.5, true)),
                                         at::rand_like(t[0].t())};
                        })
                    .as_on_one_rank()
                    .refuses_pending_self());
  return all;
}

const SampleFile file("random numbers", samples);
TEST_CASE("random numbers") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
