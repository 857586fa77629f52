// Public failures of other systems that concern training jobs, restated; each test bears its number.
#include <parallelize/all.h>
#include <parallelize/clip_grad_norm.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <unistd.h>
#include <cstdio>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    up = register_module("up", torch::nn::Linear(8, 12));
    down = register_module("down", torch::nn::Linear(12, 8));
    to(at::kDouble);
    const torch::NoGradGuard no_grad;
    int seed = 0;
    for (auto& p : parameters()) p.copy_(values(p.sizes(), seed++) * 0.4);
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(norm(x)))).pow(2).mean(); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Mlp);

ParallelPlan tensor_parallel() {
  ParallelPlan plan;
  plan.rules = {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}};
  return plan;
}

void check_same(Mlp& module, Mlp& reference, const std::string& text) {
  const auto expected = reference->named_parameters();
  for (const auto& p : module->named_parameters())
    check_close(p.value(), expected[p.key()], text + ": " + p.key(), 1e-7);
}

}  // namespace

TEST_CASE("K54: an optimizer made before the plan is applied trains the parallel model") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    Mlp module, reference;
    torch::optim::Adam optimizer(module->parameters(), torch::optim::AdamOptions(0.05)),
        expected(reference->parameters(), torch::optim::AdamOptions(0.05));
    parallelize_module(*module, mesh, tensor_parallel());
    const auto before = whole(module->up->weight).clone();
    const auto x = values({4, 8}, 9);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      expected.zero_grad();
      const auto loss = module->forward(place(x, mesh, {Replicate()})), wanted = reference->forward(x);
      check_close(loss, wanted, "loss");
      loss.backward();
      wanted.backward();
      optimizer.step();
      expected.step();
    }
    check(!at::allclose(whole(module->up->weight), before), "weights change");
    check_same(module, reference, "after two steps");
  });
}

TEST_CASE("K55: learning rates and step sizes as numbers and tensors") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = values({6, 4});
    const auto gradient = values({6, 4}, 1);
    // LibTorch's optimizers take numbers; what hand-written ones use takes 0-dim and [1] tensors too.
    for (int form = 0; form < 3; ++form) {
      auto p = place(full, mesh, {Shard(0)}), m = zeros({6, 4}, mesh, {Shard(0)}, at::kDouble);
      auto q = full.clone(), n = at::zeros({6, 4}, at::kDouble);
      const auto dg = place(gradient, mesh, {Shard(0)});
      for (int step = 0; step < 3; ++step) {
        const double rate = 0.1 / (step + 1);
        n.lerp_(gradient, 0.1);
        q.sub_(n * rate);
        if (form == 0) {
          m.lerp_(dg, 0.1);
          p.sub_(m, rate);
        } else if (form == 1) {
          m.lerp_(dg, at::scalar_tensor(0.1, at::kDouble));
          p.sub_(m * at::scalar_tensor(rate, at::kDouble));
        } else {
          m.lerp_(dg, 0.1);
          const auto one = at::full({1}, rate, at::kDouble);
          check_contains(refusal_of<UnsupportedError>([&] { m* one; }, "a plain [1] tensor"),
                         "distribute_tensor");
          p.sub_(m * place(one, mesh, {Replicate()}));
        }
      }
      check_close(p, q, fmt::format("form {}", form));
    }
    for (bool amsgrad : {false, true}) {
      Mlp module, reference;
      parallelize_module(*module, mesh, tensor_parallel());
      torch::optim::AdamW optimizer(module->parameters(), torch::optim::AdamWOptions(0.05).amsgrad(amsgrad)),
          expected(reference->parameters(), torch::optim::AdamWOptions(0.05).amsgrad(amsgrad));
      const auto x = values({4, 8}, 9);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        expected.zero_grad();
        module->forward(place(x, mesh, {Replicate()})).backward();
        reference->forward(x).backward();
        optimizer.step();
        expected.step();
      }
      check_same(module, reference, "AdamW");
    }
  });
}

TEST_CASE("K56: clipping gradients that live on different meshes") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto tp = mesh["tp"];
    for (int form = 0; form < 2; ++form) {
      at::Tensor a = leaf(at::zeros({2}, at::kDouble), tp, {Shard(0)}),
                 b = leaf(at::zeros({2}, at::kDouble), mesh, {Shard(0), Shard(0)}),
                 c = at::zeros({1}, at::kDouble).set_requires_grad(true);
      a.mutable_grad() = place(at::tensor({3., 0.}, at::kDouble), tp, {Shard(0)});
      b.mutable_grad() = place(at::tensor({0., 4.}, at::kDouble), mesh, {Shard(0), Shard(0)});
      c.mutable_grad() = at::full({1}, 12, at::kDouble);
      const auto norm =
          clip_grad_norm_(form ? std::vector<at::Tensor>{c, b, a} : std::vector<at::Tensor>{a, b, c}, 6.5);
      check(std::abs(norm.item<double>() - 13) < 1e-9, "total norm");
      check_close(a.grad(), at::tensor({1.5, 0.}, at::kDouble), "halved", 1e-5);
      check_close(b.grad(), at::tensor({0., 2.}, at::kDouble), "halved", 1e-5);
      check_close(c.grad(), at::full({1}, 6, at::kDouble), "halved", 1e-5);
    }
  });
}

TEST_CASE("K57: replicated gradients count once, pending ones by their sum") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    at::Tensor a = leaf(at::zeros({2}, at::kDouble), mesh, {Shard(0)}),
               b = leaf(at::zeros({2}, at::kDouble), mesh, {Replicate()}),
               c = leaf(at::zeros({1}, at::kDouble), mesh, {Replicate()});
    a.mutable_grad() = place(at::tensor({3., 0.}, at::kDouble), mesh, {Shard(0)});
    b.mutable_grad() = place(at::tensor({0., 4.}, at::kDouble), mesh, {Replicate()});
    c.mutable_grad() = from_local(at::full({1}, rank == 0 ? 5 : 7, at::kDouble), mesh, {Partial()});
    check(std::abs(clip_grad_norm_({a, b}, 100).item<double>() - 5) < 1e-9, "sharded and replicated");
    check(std::abs(clip_grad_norm_({a, b, c}, 100).item<double>() - 13) < 1e-9, "and pending");
  });
}

TEST_CASE("K70: a parameter that one data-parallel rank alone uses") {
  struct Net : torch::nn::Module {
    Net()
        : a(register_module("a", torch::nn::Linear(4, 4))), b(register_module("b", torch::nn::Linear(4, 4))) {
      to(at::kDouble);
      const torch::NoGradGuard no_grad;
      int seed = 0;
      for (auto& p : parameters()) p.copy_(values(p.sizes(), seed++) * 0.4);
    }
    torch::nn::Linear a, b;
  };
  run_ranks(2, [](int rank) {
    const auto mesh = line(2, "dp");
    Net net, reference;
    ParallelPlan plan;
    plan.data_parallel = DataParallel{};
    parallelize_module(net, mesh, plan);
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1)),
        expected(reference.parameters(), torch::optim::SGDOptions(0.1));
    // Rank 0's half sums to a positive number, rank 1's does not: only rank 0 takes the branch, a mistake of the program.
    const auto parts = std::vector<at::Tensor>{values({2, 4}).abs(), -values({2, 4}, 1).abs()};
    const auto total = [](Net& n, const at::Tensor& x, bool branch) {
      auto y = n.a(x);
      if (branch) y = y + n.b(x);
      return y.pow(2).sum();
    };
    const auto x = distribute_batch(parts[static_cast<std::size_t>(rank)], mesh);
    total(net, x, parts[static_cast<std::size_t>(rank)].sum().item<double>() > 0).backward();
    (total(reference, parts[0], true) + total(reference, parts[1], false)).backward();
    clip_grad_norm_(net.parameters(), 1.0);
    torch::nn::utils::clip_grad_norm_(reference.parameters(), 1.0);
    optimizer.step();
    expected.step();
    const auto mine = net.parameters(), theirs = reference.parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      check_close(mine[i], theirs[i], fmt::format("parameter {}", i));
      check_close(as_dtensor(mine[i].detach()).to_local(), theirs[i],
                  fmt::format("parameter {} on this rank", i));
    }
  });
}

TEST_CASE("K75: training prints no warning about missing autograd kernels") {
  // Everything that ranks write to stderr, warnings of LibTorch's C++ code included.
  std::fflush(stderr);
  const int saved = dup(2);
  std::FILE* captured = std::tmpfile();
  REQUIRE(captured != nullptr);
  dup2(fileno(captured), 2);
  std::exception_ptr failure;
  try {
    run_ranks(2, [](int) {
      const auto mesh = line(2);
      Mlp module, reference;
      auto plan = tensor_parallel();
      plan.rules[1].style = RowwiseParallel({}, Shard(0));
      plan.rules.push_back({"norm", SequenceParallel(0)});
      parallelize_module(*module, mesh, plan);
      auto px = values({4, 8}, 9).set_requires_grad(true), x = values({4, 8}, 9).set_requires_grad(true);
      for (int step = 0; step < 3; ++step) {
        const auto loss = module->forward(distribute_tensor(x, mesh, {Shard(0)})),
                   expected = reference->forward(px);
        check_close(loss, expected, "loss");
        loss.backward();
        expected.backward();
      }
      check_close(x.grad(), px.grad(), "gradient of the input");
      const auto theirs = reference->named_parameters();
      for (const auto& p : module->named_parameters())
        check_close(p.value().grad(), theirs[p.key()].grad(), p.key());
    });
  } catch (...) {
    failure = std::current_exception();
  }
  std::fflush(stderr);
  dup2(saved, 2);
  close(saved);
  std::string text(static_cast<std::size_t>(std::ftell(captured)), '\0');
  std::rewind(captured);
  text.resize(std::fread(text.data(), 1, text.size(), captured));
  std::fclose(captured);
  if (failure) std::rethrow_exception(failure);
  INFO(text);
  CHECK(text.find("autograd kernel") == std::string::npos);
  CHECK(text.find("not registered") == std::string::npos);
  CHECK(text.find("derivative") == std::string::npos);
}
