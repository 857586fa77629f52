// Plain tensors that meet DTensors, by policy and in backward formulas (trap 2).
#include <support/check.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {
const Policy checked = {Fallback::warn, ImplicitMoves::allow, PlainTensors::replicate_checked};

// Two results, of which a program may use one: the other's gradient is plain zeros.
struct TwoResults : torch::autograd::Function<TwoResults> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, const at::Tensor& a) {
    return {a * 2, a * 3};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list g) {
    return {g[0] * 2 + g[1] * 3};
  }
};
// Its gradient is a plain tensor only.
struct PlainGradient : torch::autograd::Function<PlainGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& a) { return a * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    return {at::full({8, 4}, 2, at::kDouble)};
  }
};
}  // namespace

TEST_CASE("plain 0-dim tensors and host numbers are replicated operands") {
  run_ranks(2, [](int) {
    const auto x = place(values({4, 2}), line(2), {Shard(0)});
    check_close(x * at::scalar_tensor(2.0, at::kDouble) + 1, values({4, 2}) * 2 + 1, "times, plus");
    check_close(at::where(x > 0, x, at::scalar_tensor(0.0, at::kDouble)), values({4, 2}).clamp_min(0),
                "where");
  });
}

TEST_CASE("other plain tensors are refused by default, with the remedy") {
  run_ranks(2, [](int) {
    const auto x = place(values({4, 2}), line(2), {Shard(0)});
    const auto plain = values({4, 2});
    for (const auto& call : std::vector<std::function<void()>>{[&] { x + plain; }, [&] { plain + x; },
                                                               [&] {
                                                                 x.matmul(values({2, 3}));
                                                               },
                                                               [&] { at::Tensor(x).add_(plain); },
                                                               [&] {
                                                                 at::cat({at::Tensor(x), plain});
                                                               }}) {
      const auto text = refusal_of<UnsupportedError>(call, "plain");
      check_contains(text, "distribute_tensor");
    }
    check_close(x, values({4, 2}), "nothing was written");
  });
}

TEST_CASE(
    "replicate_checked: plain tensors enter after a comparison, once per operator, argument and shape") {
  run_ranks(2, [](int) {
    const PolicyGuard guard(checked);
    const auto x = place(values({4, 2}), line(2), {Shard(0)});
    CollectiveCounter counter;
    for (int step = 0; step < 3; ++step)
      check_close((x + values({4, 2}, step)).detach(), values({4, 2}) + values({4, 2}, step), "add");
    check(counter.count(Collective::all_gather, "tp", "check") == 1, "compared at the first use");
    counter.reset();
    x + values({2}, 1);
    check(counter.count(Collective::all_gather, "tp", "check") == 1, "another shape");
    counter.reset();
    x* values({2}, 1);
    check(counter.count(Collective::all_gather, "tp", "check") == 1, "another operator");
  });
}

TEST_CASE("replicate_checked: a mask and positions made in forward") {
  run_ranks(2, [](int) {
    const PolicyGuard guard(checked);
    const auto table = values({16, 8}), q = values({2, 2, 4, 8}, 1);
    const auto positions = at::arange(4, at::kLong), mask = at::full({4, 4}, -1e9, at::kDouble).triu(1);
    auto dt = leaf(table, line(2), {Shard(0)}), dq = leaf(q, line(2), {Shard(1)});
    auto pt = table.clone().set_requires_grad(true), pq = q.clone().set_requires_grad(true);
    const auto run = [&](const at::Tensor& t, const at::Tensor& x) {
      const auto y = x + at::embedding(t, positions);
      return at::scaled_dot_product_attention(y, y, y, mask).pow(2).sum();
    };
    const auto expected = run(pt, pq), actual = run(dt, dq);
    check_close(actual, expected, "value");
    expected.backward();
    actual.backward();
    check_close(dt.grad(), pt.grad(), "table");
    check_close(dq.grad(), pq.grad(), "query");
  });
}

TEST_CASE("replicate_checked: ranks that hold different values are told, all of them") {
  run_ranks(2, [](int rank) {
    const PolicyGuard guard(checked);
    const auto x = place(values({4, 2}), line(2), {Shard(0)});
    const auto text = error_of<DesyncError>([&] { x + values({4, 2}, rank); }, "different values");
    check_contains(text, "differ between ranks");
    check_contains(text, "tp");
  });
}

TEST_CASE("a plain tensor that requires grad is refused, with the remedy") {
  run_ranks(2, [](int) {
    const PolicyGuard guard(checked);
    const auto mesh = line(2);
    const auto x = leaf(values({4, 2}), mesh, {Shard(0)});
    auto plain = values({4, 2}).set_requires_grad(true), weight = values({3, 2}).set_requires_grad(true);
    check_contains(refusal_of<UnsupportedError>([&] { x + plain; }, "add"), "distribute_tensor");
    check_contains(refusal_of<UnsupportedError>([&] { torch::linear(x, weight); }, "linear"),
                   "distribute_tensor");
    check_contains(
        refusal_of<UnsupportedError>([&] { torch::layer_norm(x, {2}, plain.select(0, 0)); }, "layer_norm"),
        "distribute_tensor");
    (x + distribute_tensor(plain, mesh, {Replicate()})).sum().backward();
    check(!is_dtensor(plain.grad()), "the remedy: a plain gradient");
    check_close(plain.grad(), at::ones({4, 2}, at::kDouble), "the remedy");
  });
}

TEST_CASE("trap 2: backward formulas that make plain zeros give DTensor gradients") {
  const std::vector<std::pair<const char*, std::function<at::Tensor(at::Tensor)>>> programs = {
      {"max", [](at::Tensor x) { return std::get<0>(x.max(1)).pow(2).sum(); }},
      {"min keepdim", [](at::Tensor x) { return std::get<0>(x.min(0, true)).pow(2).sum(); }},
      {"topk", [](at::Tensor x) { return std::get<0>(x.topk(2, 1)).pow(2).sum(); }},
      {"sort", [](at::Tensor x) { return std::get<0>(x.sort(0)).select(0, 2).pow(2).sum(); }},
      {"kthvalue", [](at::Tensor x) { return std::get<0>(x.kthvalue(2, 1)).pow(2).sum(); }},
      {"median", [](at::Tensor x) { return std::get<0>(x.median(1)).pow(2).sum(); }},
      {"mode", [](at::Tensor x) { return std::get<0>(x.mode(1)).pow(2).sum(); }},
      {"cummax", [](at::Tensor x) { return std::get<0>(x.cummax(1)).pow(2).sum(); }},
      {"chunk, one unused", [](at::Tensor x) { return (x * 2).chunk(2, 1)[0].pow(2).sum(); }},
      {"split, one unused", [](at::Tensor x) { return (x * 2).split(4, 0)[1].pow(2).sum(); }},
      {"unbind", [](at::Tensor x) { return (x * 2).unbind(0)[3].pow(2).sum(); }},
      {"function, one result unused", [](at::Tensor x) { return TwoResults::apply(x)[1].pow(2).sum(); }},
      {"select", [](at::Tensor x) { return x.select(1, 2).pow(2).sum(); }},
      {"prod", [](at::Tensor x) { return x.prod(1).sum(); }},
      {"cat of chunks", [](at::Tensor x) { return at::cat((x * 2).chunk(2, 0), 1).pow(2).sum(); }},
      {"max of all", [](at::Tensor x) { return x.max() * 2; }},
  };
  run_ranks(2, [&](int) {
    const PolicyGuard quiet({Fallback::allow, ImplicitMoves::allow, PlainTensors::error});
    for (const auto& placement : {Shard(0), Shard(1), Replicate()})
      for (const auto& [name, program] : programs) {
        const auto text = fmt::format("{} {}", name, placement.to_string());
        auto p = values({8, 4}).set_requires_grad(true);
        program(p).backward();
        auto x = leaf(values({8, 4}), line(2), {placement});
        for (int step = 0; step < 2; ++step) {
          x.mutable_grad() = at::Tensor();
          program(x).backward();
          check(is_dtensor(x.grad()), text + ": a plain gradient");
          check_close(x.grad(), p.grad(), text);
        }
      }
  });
}

TEST_CASE("trap 2: plain gradients of the user's come to the leaf as DTensors") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      const auto make = [&] { return leaf(values({8, 4}), line(2), {placement}); };
      const auto twos = at::full({8, 4}, 2, at::kDouble);
      auto x = make();
      (x * 2).backward(at::ones({8, 4}, at::kDouble));
      check_close(x.grad(), twos, "a plain root gradient");
      check_placed(x.grad(), {placement}, "a plain root gradient");
      x = make();
      x.register_hook([](const at::Tensor&) { return at::full({8, 4}, 2, at::kDouble); });
      (x * 5).sum().backward();
      check_close(x.grad(), twos, "a hook that returns a plain tensor");
      check_placed(x.grad(), {placement}, "a hook that returns a plain tensor");
      x = make();
      auto y = x * 2;
      const auto g = torch::autograd::grad({y}, {x}, {at::ones({8, 4}, at::kDouble)})[0];
      check(is_dtensor(g), "autograd::grad");
      check_close(g, twos, "autograd::grad");
      x = make();
      PlainGradient::apply(x * 1).sum().backward();
      check_close(x.grad(), twos, "a function whose backward is plain");
      check_placed(x.grad(), {placement}, "a function whose backward is plain");
    }
  });
}

TEST_CASE("trap 2: the leaf hook follows what set_data makes of the leaf") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    at::Tensor x = leaf(values({8, 4}), mesh, {Shard(0)});
    int calls = 0;
    x.register_hook([&](const at::Tensor& g) {
      ++calls;
      return g;
    });
    (x * 2).sum().backward();
    check_placed(x.grad(), {Shard(0)}, "as made");
    x.mutable_grad() = at::Tensor();
    x.set_data(place(values({8, 4}), mesh, {Shard(1)}));
    (x * 2).sum().backward();
    check_placed(x.grad(), {Shard(1)}, "placed otherwise");
    x.mutable_grad() = at::Tensor();
    x.set_data(values({8, 4}));
    (x * 2).sum().backward();
    check(!is_dtensor(x.grad()), "made plain");
    check(calls == 3, "the user's hook stays");
  });
}

TEST_CASE("trap 2: a bare leaf's gradient may be pending; reading it reduces") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    auto w = leaf(values({4, 3}), mesh, {Replicate()});
    const auto x = place(values({6, 4}, 1), mesh, {Shard(0)});
    auto p = values({4, 3}).set_requires_grad(true);
    for (int step = 0; step < 2; ++step) {
      x.matmul(w).pow(2).sum().backward();
      values({6, 4}, 1).matmul(p).pow(2).sum().backward();
    }
    check_placed(w.grad(), {Partial()}, "each rank saw its rows");
    check_close(w.grad(), p.grad(), "reading reduces");
    check_close(w.grad().norm(), p.grad().norm(), "so does an operator that needs the value");
  });
}

TEST_CASE("trap 16: absent tensors, lists of tensors, lists of absent ones and symbolic sizes are all arguments") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = values({4, 6}), weight = values({6}, 1);
    const auto sharded = place(x, mesh, {Shard(0)}), scale = place(weight, mesh, {Replicate()});
    const auto columns = at::tensor({2, 0, 3});
    const auto placed_columns = place(columns, mesh, {Replicate()});
    check_close(at::layer_norm(sharded, {6}, scale), at::layer_norm(x, {6}, weight), "Tensor?: one given, one absent");
    check_close(at::layer_norm(sharded, {6}), at::layer_norm(x, {6}), "Tensor?: none given");
    check_close(at::cat({sharded, sharded}, 1), at::cat({x, x}, 1), "Tensor[]");
    const auto every = torch::indexing::Slice();
    check_close(at::Tensor(sharded).index({every, placed_columns}), x.index({every, columns}), "Tensor?[], one absent");
    check_close(at::Tensor(sharded).view_symint({c10::SymInt(2), c10::SymInt(12)}), x.view({2, 12}), "SymInt[]");
  });
}

TEST_CASE("trap 16: embedding with sparse gradients is refused by name") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto tokens = place(at::tensor({1, 3, 0}), mesh, {Replicate()});
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      const auto table = leaf(values({4, 6}), mesh, {placement});
      check_contains(refusal_of<Error>([&] { at::embedding(table, tokens, -1, false, true); }, "sparse"), "sparse");
    }
  });
}
