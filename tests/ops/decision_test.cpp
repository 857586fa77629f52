// What needs no communication: a rule that always answers "replicate" would pass every test of values.
#include "brute_force.h"

#include "comm/counters.h"
#include "comm/run_ranks.h"
#include "dtensor/dtensor.h"
#include "placed_input.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <catch2/catch_test_macros.hpp>

#include <mutex>

namespace dtensor::brute {
namespace {

struct Expectation {
  Sample sample;
  Placements inputs;  // on a mesh of one dimension
  Placements results;
  std::int64_t collectives = 0;
};

std::vector<Expectation> expectations() {
  const auto x = values({4, 6}), y = values({4, 6}), square = values({6, 6}), heads = values({2, 4, 3, 5});
  const auto none = c10::IValue();
  const auto R = Replicate(), S0 = Shard(0), S1 = Shard(1), P = Partial();
  return {
      {sample("aten::relu", {x}), {S0}, {S0}},
      {sample("aten::relu", {values({5, 3})}), {S0}, {S0}},
      {sample("aten::relu", {x}), {Interleaved(1, {2, 4})}, {Interleaved(1, {2, 4})}},
      {sample("aten::neg", {x}), {P}, {P}},
      {sample("aten::add.Tensor", {x, y}), {S1, S1}, {S1}},
      {sample("aten::add.Tensor", {x, y}), {S1, R}, {S1}},
      {sample("aten::add.Tensor", {x, y}), {P, P}, {P}},
      {sample("aten::add.Tensor", {x, values({6})}), {S1, S0}, {S1}},
      {sample("aten::add_.Tensor", {x, values({6})}), {P, R}, {P}},
      {sample("aten::mul.Tensor", {x, y}), {P, R}, {P}},
      {sample("aten::mul.Tensor", {x, values({})}), {P, R}, {P}},
      {sample("aten::div.Tensor", {x, values({}, 1, 2)}), {P, R}, {P}},
      {sample("aten::masked_fill.Scalar", {x, booleans({4, 6}), 3.0}), {P, R}, {P}},
      {sample("aten::where.self", {booleans({4, 6}), x, y}), {R, P, P}, {P}},
      {sample("aten::mm", {x, square}), {S0, R}, {S0}},
      {sample("aten::mm", {x, square}), {R, S1}, {S1}},
      {sample("aten::mm", {x, square}), {S1, S0}, {P}},
      {sample("aten::mm", {x, square}), {P, R}, {P}},
      {sample("aten::mm", {x, square}), {R, S0}, {P}},
      {sample("aten::bmm", {values({4, 2, 3}), values({4, 3, 2})}), {S0, S0}, {S0}},
      {sample("aten::matmul", {values({2, 4, 6}), square}), {S1, R}, {S1}},
      {sample("aten::matmul", {heads, values({2, 4, 5, 3})}), {S1, S1}, {S1}},
      {sample("aten::view", {x, Numbers{2, 2, 6}}), {S0}, {S0}},
      {sample("aten::view", {x, Numbers{4, 2, 3}}), {S1}, {S1}},
      {sample("aten::view", {x, Numbers{24}}), {S0}, {S0}},
      {sample("aten::view", {x, Numbers{24}}), {P}, {P}},
      {sample("aten::transpose.int", {x, 0, 1}), {S0}, {S1}},
      {sample("aten::unsqueeze", {x, 0}), {S0}, {S1}},
      {sample("aten::squeeze.dim", {values({1, 4}), 0}), {S1}, {S0}},
      {sample("aten::expand", {values({4, 1}), Numbers{4, 3}}), {S0}, {S0}},
      {sample("aten::sum", {x}), {S0}, {P}},
      {sample("aten::mean", {values({5, 3})}), {S0}, {P}},
      {sample("aten::sum.dim_IntList", {x, Numbers{0}, false}), {S1}, {S0}},
      {sample("aten::amax", {x, Numbers{0}, false}), {S0}, {Partial(ReduceOp::max)}},
      {sample("aten::argmax", {x, 1, false}), {S0}, {S0}},
      {sample("aten::cumsum", {x, 1}), {S0}, {S0}},
      {sample("aten::linalg_vector_norm", {x, 2.0}), {S0}, {R}, 1},
      {sample("aten::_softmax", {x, 1, false}), {S0}, {S0}},
      {sample("aten::native_layer_norm", {x, Numbers{6}, none, none, 1e-5}), {S0}, {S0, S0, S0}},
      {sample("aten::nll_loss_forward", {x, integers({4}, 0, 6), none, 1, -100}), {S0, S0}, {P, R}, 1},
      {sample("aten::embedding", {values({8, 3}), integers({2, 3}, 0, 8)}), {S0, R}, {P}},
      {sample("aten::embedding", {values({8, 4}), integers({2, 3}, 0, 8)}), {S1, R}, {Shard(2)}},
      {sample("aten::embedding", {values({8, 3}), integers({2, 3}, 0, 8)}), {R, S0}, {S0}},
      {sample("aten::_scaled_dot_product_flash_attention_for_cpu", {heads, heads, heads}),
       {S1, S1, S1},
       {S1, S1}},
      {sample("aten::cat", {Tensors{x, y}, 0}), {S1, S1}, {S1}},
      {sample("aten::cat", {Tensors{x, y}, 0}), {P, P}, {P}},
      {sample("aten::stack", {Tensors{x, y}, 0}), {S0, S0}, {S1}},
      {sample("aten::split.Tensor", {x, 3, 1}), {S0}, {S0, S0}},
      {sample("aten::slice.Tensor", {x, 0}), {S0}, {S0}},
      {sample("aten::select.int", {x, 0, 1}), {S1}, {S0}},
      {sample("aten::clone", {x}), {P}, {P}},
      {sample("aten::_to_copy", {x, at::kFloat}), {P}, {P}},
      {sample("aten::copy_", {x, y}), {S0, R}, {S0}},
      {sample("aten::zeros_like", {x}), {P}, {R}},
      {sample("aten::zeros_like", {x}), {S1}, {S1}},
      {sample("aten::new_zeros", {x, Numbers{4, 6}}), {S0}, {S0}},
      {sample("aten::new_zeros", {x, Numbers{3}}), {S0}, {R}},
      {sample("aten::zero_", {x}), {P}, {P}},
      {sample("aten::native_dropout", {x, 0.5, true}), {S0}, {S0, S0}},
      {sample("aten::rand_like", {x}), {P}, {R}},
  };
}

TEST_CASE("placements that fit need no communication") {
  const auto all = expectations();
  std::string failures;
  std::mutex mutex;
  run_ranks(2, [&](int rank) {
    const at::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const auto& one : all) {
      std::vector<c10::IValue> arguments;
      std::size_t next = 0;
      const auto place = [&](const at::Tensor& full) {
        return placed(full, mesh, {one.inputs.at(next++)}, 1);
      };
      for (const auto& value : one.sample.arguments) {
        if (value.isTensor()) {
          arguments.emplace_back(place(value.toTensor()));
        } else if (value.isTensorList()) {
          Tensors tensors;
          for (const auto& tensor : value.toTensorVector()) tensors.push_back(place(tensor));
          arguments.emplace_back(tensors);
        } else {
          arguments.push_back(value);
        }
      }
      const CollectiveCounter counter;
      const auto results = call_operator(one.sample.op, std::move(arguments));
      Placements placements;
      for (const auto& result : results) placements.push_back(DTensor(result).placements()[0]);
      if (rank != 0 || (placements == one.results && counter.total() == one.collectives)) continue;
      const std::lock_guard lock(mutex);
      failures += fmt::format("\n{} placed {} gives {}, not {}, with {} collectives ({})", one.sample.label(),
                              dtensor::to_string(one.inputs), dtensor::to_string(placements),
                              dtensor::to_string(one.results), counter.total(), counter.to_string());
    }
  });
  CHECK(failures == "");
}

}  // namespace
}  // namespace dtensor::brute
