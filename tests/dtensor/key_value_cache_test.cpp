// Inference with a key-value cache cut by heads: it grows in place by slice and copy_, without communication, and once the
// first tokens have been decided, without a new decision.
#include <dtensor/decision_cache.h>
#include <support/check.h>
#include <torch/types.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

constexpr std::int64_t batch = 2, heads = 4, longest = 24, width = 8;

// One decoding step: the keys and values of token `t` enter the cache, its queries attend to all so far.
at::Tensor step(at::Tensor keys, at::Tensor values, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                std::int64_t t) {
  keys.slice(2, t, t + 1).copy_(k);
  values.slice(2, t, t + 1).copy_(v);
  const auto past_keys = keys.slice(2, 0, t + 1), past_values = values.slice(2, 0, t + 1);
  return torch::softmax(torch::matmul(q, past_keys.transpose(-2, -1)) / 2.8, -1).matmul(past_values);
}
// The same by the fused operator.
at::Tensor fused_step(at::Tensor keys, at::Tensor values, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      std::int64_t t) {
  keys.narrow(2, t, 1).copy_(k);
  values.narrow(2, t, 1).copy_(v);
  return torch::scaled_dot_product_attention(q, keys.narrow(2, 0, t + 1), values.narrow(2, 0, t + 1));
}

using Step = decltype(step);

void grow(Step* one_step, const DeviceMesh& mesh, const std::vector<at::Tensor>& plain, bool alone) {
  const auto zeros = at::zeros({batch, heads, longest, width}, at::kDouble);
  auto expected_keys = zeros.clone(), expected_values = zeros.clone();
  const at::Tensor keys = place(zeros, mesh, {Shard(1)}), values = place(zeros, mesh, {Shard(1)});
  // Not to the end: a slice of everything is contiguous, which is another case.
  for (std::int64_t t = 0; t < longest - 1; ++t) {
    std::vector<at::Tensor> placed;
    for (const auto& tensor : plain) placed.push_back(place(tensor + static_cast<double>(t), mesh, {Shard(1)}));
    const auto expected = one_step(expected_keys, expected_values, plain[0] + t, plain[1] + t, plain[2] + t, t);
    CollectiveCounter counter;
    const auto before = DecisionCache::instance().statistics().misses;
    const auto result = one_step(keys, values, placed[0], placed[1], placed[2], t);
    const auto misses = DecisionCache::instance().statistics().misses - before;
    check(counter.total() == 0, "a step communicates");
    // One cache serves all rank threads: on a mesh of one nobody else's misses are counted.
    if (alone && t > 2) check(misses == 0, "token " + std::to_string(t) + " needs " + std::to_string(misses) + " new decisions");
    check(DTensor(result).placements() == Placements{Shard(1)}, "heads stay where they are");
    check_close(result, expected, "token " + std::to_string(t), 1e-12);
  }
  check_close(keys, expected_keys, "the keys in the cache", 1e-12);
}

}  // namespace

TEST_CASE("a key-value cache grows without communication or new decisions") {
  std::vector<at::Tensor> plain;
  for (int i = 0; i < 3; ++i) plain.push_back(at::rand({batch, heads, 1, width}, at::kDouble));
  for (Step* one_step : {step, fused_step})
    for (const int ranks : {1, 2, 3})
      for (const bool inference : {false, true})
        run_ranks(ranks, [&](int) {
          const c10::InferenceMode mode(inference);
          const torch::NoGradGuard no_grad;
          grow(one_step, line(ranks), plain, ranks == 1);
        });
}
