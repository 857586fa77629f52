// Operators that run as the others which their stock kernel calls.
#include "brute_force.h"

#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, Tensors inputs, std::function<Tensors(const Tensors&)> run) -> Sample& {
    all.push_back(program(op, std::move(inputs), std::move(run)).reaches({op}).at_most(24));
    return all.back();
  };
  const auto rows = integers({3, 2}, 0, 5), columns = integers({3, 2}, 0, 4);
  add("aten::_unsafe_masked_index", {values({5, 4}), booleans({3, 2}), rows, columns}, [](const Tensors& x) {
    return call_operator("aten::_unsafe_masked_index", {x[0], x[1], Indices({x[2], x[3]}), 0.5});
  });
  add("aten::_unsafe_masked_index_put_accumulate", {values({5, 4}), booleans({3, 2}), rows, columns, values({3, 2})},
      [](const Tensors& x) {
        return call_operator("aten::_unsafe_masked_index_put_accumulate", {x[0], x[1], Indices({x[2], x[3]}), x[4]});
      }).without_gradient();
  for (const double p : {0.0, 1.0, 2.0, 3.0})
{
    all.push_back(sample("aten::dist", {values({5, 3}), values({5, 3}), p}).at_most(24));
    all.back().gradient = p > 0;  // a count has none
  }
  for (const std::int64_t chunks : {2, 3})
    add("aten::_chunk_cat", {values({5, 3}), values({4, 2})}, [chunks](const Tensors& x) {
      return Tensors{at::_chunk_cat({x[0], x[1]}, 0, chunks)};
    }).without_gradient();
  for (const auto& shape : {Numbers{4, 3, 2}, Numbers{3, 4}})
    add("aten::linalg_pinv.atol_rtol_tensor", {values(shape)}, [](const Tensors& x) {
      return Tensors{at::linalg_pinv(x[0])};
    }).any_strides();
  return all;
}

const SampleFile file("decomposition", samples);
TEST_CASE("decomposition") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
