// Autocast, inference mode, NoGrad, and wishes in each of them (DESIGN 4.4 to 4.6, traps 8 and 10).
#include <dtensor/meta.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <ATen/autocast_mode.h>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

class RawAutocast {
 public:
  RawAutocast() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~RawAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
};

// A weight cut by rows whose consumers want their input whole, as a colwise style leaves it.
DTensor colwise(const at::Tensor& full, const DeviceMesh& mesh) {
  auto weight = leaf(full, mesh, {Shard(0)});
  dtensor::detail::meta(weight).wishes = std::make_shared<const std::vector<Wish>>(
      std::vector<Wish>{{WishFamily::matmul, {{0, Replicate()}}, {}, true}});
  return weight;
}

struct Net : torch::nn::Module {
  Net()
      : a(register_module("a", torch::nn::Linear(8, 16))),
        b(register_module("b", torch::nn::Linear(16, 8))),
        n(register_module("n", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))) {
    torch::NoGradGuard no_grad;
    int seed = 0;
    for (auto& p : parameters()) p.copy_(values(p.sizes(), seed++, at::kFloat) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) { return n(b(at::gelu(a(x))) + x); }
  void distribute(const DeviceMesh& mesh) {
    for (auto& p : parameters()) p.set_data(place(p.detach(), mesh, {Shard(0)}));
  }
  torch::nn::Linear a, b;
  torch::nn::LayerNorm n;
};

}  // namespace

TEST_CASE("autocast: raw at::autocast gives the values and dtypes of plain tensors") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      Net net, reference;
      net.distribute(mesh);
      const auto x = values({4, 6, 8}, 9, at::kFloat);
      at::Tensor y, expected;
      {
        const RawAutocast on;
        y = net.forward(place(x, mesh, {placement}));
        expected = reference.forward(x);
      }
      check_close(y, expected, "forward", 3e-2);
      y.pow(2).sum().backward();
      expected.pow(2).sum().backward();
      const auto mine = net.parameters(), theirs = reference.parameters();
      for (std::size_t i = 0; i < mine.size(); ++i) {
        check(mine[i].grad().scalar_type() == at::kFloat, "gradients in the parameter's dtype");
        const auto scale = theirs[i].grad().abs().max().item<double>();
        check_close(mine[i].grad() / scale, theirs[i].grad() / scale, "gradient", 5e-2);
      }
    }
  });
}

TEST_CASE("trap 8: a local operator is not cast again by autocast") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const RawAutocast on;
    const auto x = place(values({4, 4}, 0, at::kFloat), mesh, {Shard(0)});
    check(x.mm(x).scalar_type() == at::kBFloat16, "mm is cast once, by autocast");
    const auto sum = (x + x).softmax(1);
    check(sum.scalar_type() == at::kFloat, "float stays float");
    const auto layer = at::layer_norm(x, {4});
    check(as_dtensor(layer).to_local().scalar_type() == layer.scalar_type(), "wrapper and local agree");
  });
}

TEST_CASE("AutocastScope: consumers of one tensor share one move in the lower precision") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = values({2, 8, 16}, 0, at::kFloat);
    std::vector<at::Tensor> weights = {values({16, 16}, 1, at::kFloat) / 4,
                                       values({16, 16}, 2, at::kFloat) / 4,
                                       values({16, 16}, 3, at::kFloat) / 4};
    const auto run = [&](const at::Tensor& x, const std::vector<at::Tensor>& w) {
      const auto h = x * 1;
      return torch::linear(h, w[0]) * torch::linear(h, w[1]) + torch::linear(h, w[2]);
    };
    auto x = leaf(full, mesh, {Shard(1)});
    std::vector<at::Tensor> cut;
    for (const auto& w : weights) cut.push_back(colwise(w, mesh));
    at::Tensor y, expected;
    auto px = full.clone().set_requires_grad(true);
    CollectiveCounter counter;
    {
      const AutocastScope scope(mesh);
      check(AutocastScope::active(), "active");
      y = run(x, cut);
      check(counter.count(Collective::all_gather) == 1, "q, k and v: one gather, " + counter.to_string());
      check(counter.bytes() == full.numel() / 2 * 2, "in bfloat16, " + counter.to_string());
      expected = run(px, weights);
    }
    check(!AutocastScope::active() && !at::autocast::is_autocast_enabled(at::kCPU), "restored");
    check_close(y, expected, "values", 6e-2);
    counter.reset();
    y.to(at::kFloat).sum().backward();
    check(counter.total() == 1, "one reduction backward, " + counter.to_string());
    expected.to(at::kFloat).sum().backward();
    check_close(x.grad() / 8, px.grad() / 8, "gradient", 6e-2);

    counter.reset();
    {
      const RawAutocast on;
      y = run(x, cut);
    }
    check(counter.count(Collective::all_gather) == 3, "raw autocast: not shared, " + counter.to_string());
    check_close(y, expected, "raw autocast: right values", 6e-2);
    {
      const RawAutocast on;
      Explain block;
      run(x, cut);
      check_contains(block.to_string(), "AutocastScope");
    }
  });
}

TEST_CASE("AutocastScope: a tensor changed between two consumers is cast and moved anew") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const at::NoGradGuard no_grad;
    const AutocastScope scope(mesh, at::kBFloat16);
    auto x = place(values({8, 4}, 0, at::kFloat), mesh, {Shard(0)});
    const auto w = colwise(values({6, 4}, 1, at::kFloat), mesh);
    const auto before = whole(torch::linear(x, w));
    x.zero_();
    check_close(torch::linear(x, w), at::zeros_like(before), "changed");
    {
      const AutocastScope inner(mesh, at::kHalf);
      check(torch::linear(x, w).scalar_type() == at::kHalf, "nested, another dtype");
    }
    check(torch::linear(x, w).scalar_type() == at::kBFloat16, "restored");
  });
}

TEST_CASE("autocast: set_data inside a region is seen") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const RawAutocast on;
    auto weight = values({4, 8}, 0, at::kFloat).set_requires_grad(true);
    const auto x = values({2, 8}, 1, at::kFloat);
    torch::linear(x, weight);
    weight.set_data(place(at::zeros({4, 8}), mesh, {Shard(0)}));
    at::autocast::clear_cache();
    check_close(torch::linear(place(x, mesh, {Replicate()}), weight), at::zeros({2, 4}, at::kBFloat16),
                "the new weight");
  });
}

TEST_CASE("trap 10: inference mode gives the same values, with normal wrappers") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    Net net, reference;
    net.distribute(mesh);
    const auto x = values({4, 6, 8}, 9, at::kFloat);
    const auto expected = reference.forward(x).detach();
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      const auto outside = place(x, mesh, {placement});
      at::Tensor kept;
      {
        const c10::InferenceMode inference;
        const auto inside = place(x, mesh, {placement});
        for (const at::Tensor& input : {at::Tensor(outside), at::Tensor(inside)}) {
          const auto y = net.forward(input);
          check(is_dtensor(y) && !y.is_inference() && !y.requires_grad(), "a normal tensor without graph");
          check_close(y, expected, "values", 1e-5);
          kept = y;
        }
        const auto view = net.a->weight.t();
        check(is_dtensor(view) && !view.is_inference(), "a view of a normal tensor");
        at::Tensor q = place(counting({4, 2}), mesh, {Shard(0)}), v = q.t();
        const auto version = q._version();
        v.mul_(2);
        check_close(q, counting({4, 2}) * 2, "written through a view");
        check(q._version() > version && q._version() == v._version(), "versions count");
      }
      kept.add_(1);
      check_close(kept, expected + 1, "written outside", 1e-5);
      auto w = leaf(at::ones({8}), mesh, {Replicate()});
      (kept * w).sum().backward();
      check_close(w.grad(), (expected + 1).sum({0, 1}), "used in training outside", 1e-4);
    }
  });
}

TEST_CASE("trap 10: moves are not shared beyond a write that has no version") {
  run_ranks(2, [](int) {
    for (bool inference : {false, true}) {
      const c10::InferenceMode mode(inference);
      auto x = place(values({4, 6}), line(2), {Shard(0)});
      auto moved = constrain(x, {Replicate()});
      as_dtensor(moved).to_local().mul_(2);
      check_close(constrain(x, {Replicate()}), values({4, 6}), "the moved data was written to");
      x.to_local().mul_(3);
      check_close(constrain(x, {Replicate()}), values({4, 6}) * 3, "the tensor was written to");
      constrain(x, {Replicate()}).mul_(2);
      check_close(constrain(x, {Replicate()}), values({4, 6}) * 3, "a consumer's tensor was written to");
    }
  });
}

TEST_CASE("trap 10: wishes are honoured once in training, NoGrad and inference mode") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto w = colwise(values({6, 4}, 1), mesh);
    auto table = leaf(values({10, 4}, 2), mesh, {Shard(0)});
    dtensor::detail::meta(table).wishes = std::make_shared<const std::vector<Wish>>(
        std::vector<Wish>{{WishFamily::embedding, {}, {{0, Shard(1)}}, false}});
    const auto indices = place(at::arange(8, at::kLong).view({2, 4}), mesh, {Replicate()});
    const auto run = [&](const char* mode) {
      const auto x = place(values({4, 4}), mesh, {Shard(0)});  // a fresh one: its moves are remembered
      CollectiveCounter counter;
      const auto y = torch::linear(x, w);
      check_placed(y, {Shard(1)}, std::string(mode) + ": colwise output");
      check(counter.total() == 1 && counter.count(Collective::all_gather, "tp", "wish") == 1,
            std::string(mode) + ": one gather, " + counter.to_string());
      counter.reset();
      const auto e = torch::embedding(table, indices);
      check_placed(e, {Shard(1)}, std::string(mode) + ": embedding output");
      check(counter.total() == 1 && counter.count(Collective::reduce_scatter, "tp", "wish") == 1,
            std::string(mode) + ": one reduce_scatter, " + counter.to_string());
      check_close(y, values({4, 4}).mm(values({6, 4}, 1).t()), mode);
      check_close(e, values({10, 4}, 2).index({at::arange(8, at::kLong).view({2, 4})}), mode);
    };
    run("training");
    {
      const at::NoGradGuard no_grad;
      run("NoGrad");
    }
    {
      const c10::InferenceMode inference;
      run("inference");
    }
  });
}

TEST_CASE("wishes travel with casts, views and copies of a weight, not with arithmetic") {
  run_ranks(2, [](int) {
    const auto w = colwise(values({6, 4}), line(2));
    const auto wished = [](const at::Tensor& t) {
      return explain(t).find("wish for matmul") != std::string::npos;
    };
    check(wished(w) && wished(w.t()) && wished(w.to(at::kFloat)) && wished(w.clone()) && wished(w.detach()),
          "carried");
    check(wished(w.data()) && wished(w.view({6, 4})) && wished(w.t().t()), "carried");
    check(!wished(w * 2) && !wished(w + w), "not by arithmetic");
  });
}
