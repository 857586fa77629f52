// Long runs find their decisions again: what changes from step to step (learning rates, scalars, sequence lengths) makes
// no new ones, and the cache stays within its limit.
#include <dtensor/decision_cache.h>
#include <support/check.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

// What one program asked of the cache.
struct Asked {
  DecisionCacheStatistics before = DecisionCache::instance().statistics();
  void check_rate(double at_least, const char* what) const {
    const auto now = DecisionCache::instance().statistics();
    const auto hits = now.hits - before.hits, misses = now.misses - before.misses;
    const double rate = static_cast<double>(hits) / static_cast<double>(hits + misses);
    check(rate >= at_least, fmt::format("{}: {} hits, {} misses", what, hits, misses));
    check(now.size <= now.limit, fmt::format("{}: {} entries, limit {}", what, now.size, now.limit));
  }
};

}  // namespace

TEST_CASE("10 000 steps with changing learning rates and scalars find their decisions") {
  run_ranks(1, [](int) {
    const auto mesh = line(1);
    auto weight = place(values({4, 4}), mesh, {Shard(0)}).detach().requires_grad_();
    torch::optim::AdamW optimizer({weight}, 1e-3);
    torch::optim::SGD descent({weight}, torch::optim::SGDOptions(1e-3).momentum(0.9));
    const auto x = place(values({2, 4}), mesh, {Replicate()});
    const Asked asked;
    for (int step = 0; step < 10000; ++step) {
      const double number = 1.0 / (step + 2);
      const auto loss = (torch::relu(x.mm(weight) * number + number).sub(number).pow(2.0) / (1 + number)).mean();
      optimizer.zero_grad();
      loss.backward();
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(1e-4 * number);
      static_cast<torch::optim::SGDOptions&>(descent.param_groups()[0].options()).lr(1e-4 * number);
      optimizer.step();
      descent.step();
    }
    asked.check_rate(0.99, "scalars");
  });
}

TEST_CASE("10 000 different sequence lengths find their decisions, in a cache that stays within its limit") {
  auto& cache = DecisionCache::instance();
  cache.set_limit(1000);
  run_ranks(1, [](int) {
    const auto mesh = line(1);
    const auto table = place(values({8, 4}), mesh, {Replicate()}).detach().requires_grad_();
    const auto weight = place(values({4, 4}), mesh, {Replicate()}).detach().requires_grad_();
    const auto head = place(values({8, 4}), mesh, {Replicate()}).detach().requires_grad_();
    const auto scale = place(values({4}), mesh, {Replicate()}).detach().requires_grad_();
    const Asked asked;
    for (std::int64_t length = 2; length < 10002; ++length) {
      const auto tokens = place(at::arange(2 * length).remainder(8).view({2, length}), mesh, {Shard(0)});
      auto x = torch::embedding(table, tokens);
      x = x + torch::gelu(at::linear(at::layer_norm(x, {4}, scale), weight));
      x = x.view({2, length, 2, 2}).transpose(1, 2).transpose(1, 2).reshape({2, length, 4});
      const auto logits = at::linear(x, head);
      torch::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten(0, 1)).backward();
    }
    asked.check_rate(0.95, "lengths");
  });
  cache.set_limit(32768);
}
