// What the library may do quietly: policies, explain, counters and the decision cache (trap 17); no refusal leaves a rank
// waiting (trap 14).
#include <dtensor/decision_cache.h>
#include <dtensor/fallback.h>
#include <support/check.h>
#include <torch/types.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("policy: implicit moves are refused before any communication, on all ranks") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = place(values({4, 6}), mesh, {Shard(0)}), b = place(values({4, 6}, 1), mesh, {Shard(1)});
    const auto pending = place(values({4, 6}), mesh, {Partial()});
    {
      const PolicyGuard guard({Fallback::warn, ImplicitMoves::error, PlainTensors::error});
      const auto text = refusal_of<UnsupportedError>([&] { a + b; }, "add");
      check_contains(text, "Shard(");
      check_contains(text, "add");
      check_contains(text, "[4, 6]");
      refusal_of<UnsupportedError>([&] { a.mm(b.t()); }, "mm");
      refusal_of<UnsupportedError>([&] { torch::relu(pending); }, "relu of a pending sum");
      refusal_of<UnsupportedError>([&] { a.sort(0, false); }, "sort over the cut dimension");
      check_close(a + a, values({4, 6}) * 2, "no move needed");
      check_close(a + b.redistribute({Shard(0)}), values({4, 6}) + values({4, 6}, 1),
                  "a move that the program asks for");
      check_close(a + place(values({4, 6}, 1), mesh, {Replicate()}).redistribute({Shard(0)}),
                  values({4, 6}) + values({4, 6}, 1), "asked for");
    }
    check_close(a + b, values({4, 6}) + values({4, 6}, 1), "the former policy is back");
  });
}

TEST_CASE("policy: an operator without a rule is refused, warned about or allowed") {
  run_ranks(2, [](int) {
    const auto x = place(values({4, 4}), line(2), {Shard(0)});
    const auto run = [&] { return at::histc(x, 4, -2, 2); };  // nobody shards a histogram
    {
      const PolicyGuard guard({Fallback::error, ImplicitMoves::allow, PlainTensors::error});
      check_contains(refusal_of<UnsupportedError>([&] { run(); }, "histc"), "histc");
      refusal_of<UnsupportedError>(
          [&] {
            at::Tensor(x).index_put_({place(values({4, 4}).gt(0), line(2), {Replicate()})},
                                     place(values({6}), line(2), {Replicate()}));  // as many as are true
          },
          "in place");
    }
    const PolicyGuard guard({Fallback::allow, ImplicitMoves::allow, PlainTensors::error});
    check_close(run(), at::histc(values({4, 4}), 4, -2, 2), "allowed");
    bool counted = false;
    for (const auto& [name, count] : dtensor::detail::fallback_counts(World::current()))
      counted = counted || (name == "aten::histc" && count >= 1);
    check(counted, "counted");
  });
}

TEST_CASE("policy: a guard restores, strict is all errors, and backward obeys") {
  run_ranks(2, [](int) {
    auto& world = World::current();
    const auto before = world.policy();
    {
      const PolicyGuard strict(Policy::strict());
      check(world.policy() == Policy::strict(), "strict");
      {
        const PolicyGuard inner({});
        check(world.policy() == Policy{}, "inner");
      }
      check(world.policy() == Policy::strict(), "inner ended");
    }
    check(world.policy() == before, "ended");
    // The gradient of b would have to move: refused where it happens, in the backward pass.
    const auto mesh = line(2);
    auto a = leaf(values({4, 6}), mesh, {Shard(0)});
    const auto y = a.relu();
    const auto root = place(values({4, 6}, 1), mesh, {Shard(1)});
    const PolicyGuard strict(Policy::strict());
    error_of<UnsupportedError>([&] { y.backward(root); }, "a move in backward");
  });
}

TEST_CASE("trap 14: shape errors are LibTorch's own, alike on all ranks and before communication") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    const auto a = place(values({5, 3}), mesh, {Shard(0)}), b = place(values({4, 3}), mesh, {Shard(1)});
    const std::vector<std::pair<const char*, std::function<void()>>> wrong = {
        {"add", [&] { a + b; }},
        {"mm", [&] { a.mm(b); }},
        {"matmul", [&] { torch::matmul(a, b); }},
        {"linear",
         [&] {
           torch::linear(a, place(values({2, 4}), mesh, {Shard(0)}));
         }},
        {"view",
         [&] {
           a.view({4, 4});
         }},
        {"reshape",
         [&] {
           a.reshape({2, 7});
         }},
        {"cat",
         [&] {
           at::cat({at::Tensor(a), at::Tensor(b)}, 1);
         }},
        {"softmax", [&] { a.softmax(2); }},
        {"sum", [&] { a.sum(5); }},
        {"transpose", [&] { a.transpose(0, 3); }},
        {"expand",
         [&] {
           a.expand({2, 2});
         }},
        {"select", [&] { a.select(0, 5); }},
        {"layer_norm", [&] { at::layer_norm(a, {4}); }},
        {"embedding", [&] { torch::embedding(a, b); }},
        {"gather", [&] { a.gather(0, b); }},
        {"add_", [&] { at::Tensor(a).add_(b); }},
        {"addmm", [&] { at::addmm(a, a, b); }},
        {"topk", [&] { a.topk(7, 0); }},
    };
    for (const auto& [name, call] : wrong) refusal_of<c10::Error>(call, name);
    check_close(a, values({5, 3}), "unharmed");
  });
}

TEST_CASE("trap 17: values that do not alter the sharding do not grow the decision cache") {
  run_ranks(1, [](int) {
    auto& cache = DecisionCache::instance();
    const auto x = place(values({8, 4}), line(1), {Shard(0)});
    auto y = x.clone();
    std::int64_t before = 0;
    for (int i = 0; i < 200; ++i) {
      if (i == 1) before = cache.statistics().size;
      y.add_(x, 0.1 * i);
      y = x * (0.5 + i) + 1.0 / (i + 1);
      y.lerp_(x, 0.001 * i);
      std::vector<at::Tensor> list = {x.clone(), y};
      at::_foreach_mul_(list, 1.0 + i);
      at::_foreach_div_(list, std::vector<at::Scalar>{1.0 + i, 2.0 + i});
      y.addcdiv_(x, x.abs() + 1, -0.01 * i);
      y.clamp_(-1.0 * i, 2.0 * i);
    }
    check(cache.statistics().size == before,
          fmt::format("{} entries became {}", before, cache.statistics().size));
    const auto hits = cache.statistics().hits;
    x + x;
    x + x;
    check(cache.statistics().hits > hits, "decisions are found again");
  });
}

TEST_CASE(
    "trap 17: another sequence length makes no new decision for pointwise operators and matrix products") {
  run_ranks(1, [](int) {
    auto& cache = DecisionCache::instance();
    std::int64_t before = 0;
    for (int i = 2; i < 40; ++i) {
      if (i == 3) before = cache.statistics().size;
      const auto x = place(values({i, 4}), line(1), {Shard(0)});
      at::gelu(torch::matmul(x + 1, place(values({4, 6}), line(1), {Replicate()}))).sum();
    }
    check(cache.statistics().size == before,
          fmt::format("{} entries became {}", before, cache.statistics().size));
  });
}

TEST_CASE("Explain records a block, operator by operator, and blocks nest") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = place(values({4, 6}), mesh, {Shard(0)}), b = place(values({4, 6}), mesh, {Shard(1)});
    Explain block;
    a + b;
    {
      Explain inner;
      a * 2;
      check(inner.operators().size() == 1 && block.operators().size() == 1, "the inner block records");
    }
    at::Tensor(a).add_(b);
    a.sum().item<double>();
    const auto text = block.to_string();
    check(block.operators().at(0).name == "aten::add.Tensor", text);
    check_contains(text, "->");
    check_contains(text, "[4, 6] [Shard");
    check(block.operators().at(0).inputs.size() == 2 && block.operators().at(0).outputs.size() == 1, text);
  });
}

TEST_CASE("Explain names operators without a rule") {
  run_ranks(2, [](int) {
    const PolicyGuard guard({Fallback::allow, ImplicitMoves::allow, PlainTensors::error});
    const auto a = place(values({4, 4}), line(2), {Shard(0)});
    Explain block;
    at::histc(a, 4, -2, 2);
    bool named = false;
    for (const auto& entry : block.operators()) named = named || entry.fallback;
    check(named, block.to_string());
    check_contains(block.to_string(), "no rule");
  });
}

TEST_CASE("explain says how a tensor is placed") {
  run_ranks(2, [](int rank) {
    const auto text = explain(place(values({5, 6}), line(2), {Shard(0)}));
    check_contains(text, "[5, 6]");
    check_contains(text, "Shard(0)");
    check_contains(text, "tp=2");
    check_contains(text, fmt::format("rank {} holds [{}, 6]", rank, rank == 0 ? 3 : 2));
    check_contains(explain(values({2})), "plain");
  });
}
