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

TEST_CASE("steps with changing learning rates and scalars find their decisions") {
  run_ranks(1, [](int) {
    const auto mesh = line(1);
    auto weight = place(values({4, 4}), mesh, {Shard(0)}).detach().requires_grad_();
    torch::optim::AdamW optimizer({weight}, 1e-3);
    torch::optim::SGD descent({weight}, torch::optim::SGDOptions(1e-3).momentum(0.9));
    const auto x = place(values({2, 4}), mesh, {Replicate()});
    const Asked asked;
    for (int step = 0; step < 2000; ++step) {
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

// A view's decision depends on its sizes; everything else is decided once for all lengths.
TEST_CASE("sequence lengths that were never seen: views alone decide anew, in a cache that stays within its limit") {
  auto& cache = DecisionCache::instance();
  cache.set_limit(500);
  run_ranks(1, [](int) {
    const auto mesh = line(1);
    const auto table = place(values({8, 4}), mesh, {Replicate()}).detach().requires_grad_();
    const auto weight = place(values({4, 4}), mesh, {Replicate()}).detach().requires_grad_();
    const auto head = place(values({8, 4}), mesh, {Replicate()}).detach().requires_grad_();
    const auto scale = place(values({4}), mesh, {Replicate()}).detach().requires_grad_();
    constexpr std::int64_t lengths = 2000;
    const auto run = [&](bool views) {
      const Asked asked;
      for (std::int64_t length = 2; length < 2 + lengths; ++length) {
        const auto tokens = place(at::arange(2 * length).remainder(8).view({2, length}), mesh, {Shard(0)});
        auto x = torch::embedding(table, tokens);
        x = x + torch::gelu(at::linear(at::layer_norm(x, {4}, scale), weight));
        if (views) x = x.view({2, length, 2, 2}).transpose(1, 2).transpose(1, 2).reshape({2, length, 4});
        const auto logits = at::linear(x, head);
        const auto loss = views ? torch::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten(0, 1)) : logits.pow(2).mean();
        loss.backward();
      }
      return asked;
    };
    run(false).check_rate(0.95, "without views but that of the mean's gradient");
    // Four views, and a gradient's that differs from them.
    const auto asked = run(true);
    asked.check_rate(0.89, "with views");
    const auto misses = DecisionCache::instance().statistics().misses - asked.before.misses;
    check(misses <= 5 * lengths + 100, fmt::format("{} misses for {} lengths", misses, lengths));
  });
  cache.set_limit(32768);
}
