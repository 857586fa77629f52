// Built modules and optimizers whose parameters become DTensors in place; what LibTorch does to their metadata (DESIGN 4.1,
// trap 21).
#include <dtensor/meta.h>
#include <support/check.h>
#include <torch/script.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    a = register_module("a", torch::nn::Linear(8, 8));
    n = register_module("n", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    extra = register_parameter("extra", at::ones({8}));
    buffer = register_buffer("buffer", at::ones({8}));
    const torch::NoGradGuard no_grad;
    int seed = 0;
    for (auto& p : parameters()) p.set_data(values(p.sizes(), seed++) * 0.5);
    buffer.set_data(values({8}, 7));
  }
  at::Tensor forward(const at::Tensor& x) { return n(a(x) * extra + buffer).pow(2).sum(); }
  void distribute(const DeviceMesh& mesh, const Placement& placement = Shard(0)) {
    for (auto& p : parameters()) p.set_data(place(p.detach(), mesh, {placement}));
    for (auto& b : buffers()) b.set_data(place(b, mesh, {Replicate()}));
  }
  torch::nn::Linear a{nullptr};
  torch::nn::LayerNorm n{nullptr};
  at::Tensor extra, buffer;
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

void check_same(Net& net, Net& reference, const std::string& text, double tolerance = 1e-6) {
  const auto expected = reference->named_parameters();
  for (const auto& p : net->named_parameters())
    check_close(p.value(), expected[p.key()], text + " " + p.key(), tolerance);
}

}  // namespace

TEST_CASE("set_data makes the parameters of a built module DTensors in place, and the optimizer sees it") {
  const std::vector<std::pair<const char*, MakeOptimizer>> optimizers = {
      {"SGD",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::SGD>(
             p, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1));
       }},
      {"AdamW",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.1).amsgrad(true));
       }},
      {"Adam",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.1));
       }},
      {"RMSprop",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::RMSprop>(
             p, torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
       }},
      {"Adagrad",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.1));
       }},
      {"LBFGS",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::LBFGS>(p, torch::optim::LBFGSOptions(0.5).max_iter(4));
       }},
      {"LBFGS strong_wolfe",
       [](std::vector<at::Tensor> p) {
         return std::make_unique<torch::optim::LBFGS>(
             p, torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe"));
       }},
  };
  run_ranks(2, [&](int) {
    const auto mesh = line(2);
    for (const auto& [name, make] : optimizers)
      for (const auto& placement : {Shard(0), Replicate()}) {
        Net net, reference;
        // Adagrad makes its state at once; the others at the first step, when the parameters are DTensors.
        const bool early = std::string(name) != "Adagrad";
        if (!early) net->distribute(mesh, placement);
        const auto optimizer = make(net->parameters()), expected = make(reference->parameters());
        if (early) net->distribute(mesh, placement);
        check(is_dtensor(net->a->weight) && is_dtensor(net->parameters()[0]) && is_dtensor(net->extra),
              "seen everywhere");
        check(net->a->weight.requires_grad() && net->a->weight.is_leaf() && net->a->weight.is_cpu(),
              "still a parameter");
        const auto x = values({4, 8}, 3);
        const auto dx = place(x, mesh, {Shard(0)});
        const auto step = [](Net& module, torch::optim::Optimizer& o, const at::Tensor& input) {
          const auto closure = [&] {
            o.zero_grad();
            auto loss = module->forward(input) / 100;
            loss.backward();
            return loss;
          };
          return o.step(closure);
        };
        for (int i = 0; i < 3; ++i) {
          const auto loss = step(net, *optimizer, dx), wanted = step(reference, *expected, x);
          check_close(loss, wanted, std::string(name) + " loss", 1e-5);
        }
        check(is_dtensor(net->a->weight.grad()), "the gradient is a DTensor");
        check_same(net, reference, fmt::format("{} {}", name, placement.to_string()), 1e-5);
      }
  });
}

TEST_CASE("stock clip_grad_norm_ and clip_grad_value_ see the global gradients") {
  run_ranks(2, [](int) {
    Net net, reference;
    net->distribute(line(2));
    net->forward(place(values({4, 8}), line(2), {Shard(0)})).backward();
    reference->forward(values({4, 8})).backward();
    const auto norm = torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    check(std::abs(norm - torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.5)) < 1e-6 * norm,
          "total norm");
    // Pending gradients of bare parameters are reduced first: clamp_ in place is refused.
    for (auto& p : net->parameters()) p.mutable_grad() = as_dtensor(p.grad()).redistribute({Shard(0)});
    torch::nn::utils::clip_grad_value_(net->parameters(), 0.02);
    torch::nn::utils::clip_grad_value_(reference->parameters(), 0.02);
    const auto mine = net->parameters(), theirs = reference->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) check_close(mine[i].grad(), theirs[i].grad(), "clipped");
    for (auto& p : net->parameters()) p.mutable_grad().zero_();
  });
}

TEST_CASE("set_data: hooks stay, graphs recorded before work, and plain data turns it back") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    auto p = values({4, 2}).set_requires_grad(true);
    int calls = 0;
    p.register_hook([&](const at::Tensor& g) {
      ++calls;
      return g;
    });
    p.set_data(place(values({4, 2}), mesh, {Shard(0)}));
    (p * 2).sum().backward();
    check(calls == 1 && is_dtensor(p.grad()), "hook");
    p.mutable_grad() = at::Tensor();
    p.set_data(values({4, 2}));
    check(!is_dtensor(p) && p.data_ptr() != nullptr, "plain again");
    (p * 2).sum().backward();
    check(!is_dtensor(p.grad()), "a plain gradient");
  });
}

TEST_CASE("Module::to(dtype), clone and Module::to(device)") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    Net net, reference;
    net->distribute(mesh);
    const auto copy = std::dynamic_pointer_cast<NetImpl>(net->clone());
    check(is_dtensor(copy->a->weight), "the clone's parameters are DTensors");
    check(dtensor::detail::meta(copy->a->weight).local.data_ptr() !=
              dtensor::detail::meta(net->a->weight).local.data_ptr(),
          "with memory of their own");
    {
      const torch::NoGradGuard no_grad;
      copy->a->weight.mul_(0);
    }
    check_same(net, reference, "the original after writing to the clone");
    net->to(at::kFloat);
    check(net->a->weight.scalar_type() == at::kFloat && is_dtensor(net->a->weight), "to(dtype)");
    check(as_dtensor(net->a->weight.detach()).to_local().scalar_type() == at::kFloat, "the local tensor too");
    check(net->a->weight.requires_grad() && net->a->weight.is_leaf(), "still a parameter");
    check_close(net->a->weight, reference->a->weight.to(at::kFloat), "values");
    net->to(at::kCPU);
    // What Module::to(device) runs, below the part that would start CUDA; and other operators that ask for a device.
    const auto text = refusal_of<UnsupportedError>(
        [&] { at::_to_copy(net->a->weight, at::TensorOptions().device(at::Device(at::kCUDA, 0))); },
        "to another device");
    check_contains(text, "device");
    check_contains(text, "full_tensor");
    refusal_of<UnsupportedError>([&] { at::zeros_like(net->a->weight, at::TensorOptions(at::kMeta)); },
                                 "zeros_like");
    // LibTorch itself answers a move to meta tensors, with a plain one; a parameter does not take it.
    refusal_of<c10::Error>([&] { net->to(at::kMeta); }, "a module to meta");
    check_close(net->a->weight, reference->a->weight.to(at::kFloat), "as it was");
  });
}

TEST_CASE("trap 8: batch_norm writes its running statistics on every rank, sharded ones too") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = values({8, 4}, 2);
    for (const auto& placement : {Replicate(), Shard(0)}) {
      torch::nn::BatchNorm1d norm(4), reference(4);
      norm->to(at::kDouble);
      reference->to(at::kDouble);
      const auto expected = reference(x);
      for (auto& p : norm->parameters()) p.set_data(place(p.detach(), mesh, {placement}));
      for (auto& b : norm->buffers()) b.set_data(place(b, mesh, {b.dim() == 0 ? Replicate() : placement}));
      check_close(norm(place(x, mesh, {Shard(0)})), expected, "value");
      check_close(norm->running_mean, reference->running_mean, "running_mean");
      check_close(norm->running_var, reference->running_var, "running_var");
      if (placement.is_replicate())
        check_close(as_dtensor(norm->running_mean).to_local(), reference->running_mean, "on this rank");
      check_close(norm->num_batches_tracked, reference->num_batches_tracked, "num_batches_tracked");
    }
  });
}

TEST_CASE("two tensors never share a meta") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    using dtensor::detail::meta;
    const at::Tensor x = place(values({4, 2}), mesh, {Shard(0)});
    at::Tensor p = values({4, 2}).set_requires_grad(true);
    p.set_data(x);
    for (const auto& other : {x.detach(), x.data(), x.variable_data(), x.alias(), p, at::Tensor(p.detach())})
      check(&meta(other) != &meta(x), "a meta of its own");
    p.set_data(place(values({4, 2}), mesh, {Replicate()}));
    check_placed(x, {Shard(0)}, "the tensor that was set before");
  });
}

TEST_CASE("storage: access throws, unrelated tensors are no aliases, torch::save does not crash") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = place(values({4, 2}), mesh, {Shard(0)}), b = place(values({4, 2}), mesh, {Shard(0)});
    error_of<c10::Error>([&] { static_cast<void>(a.storage()); }, "storage");
    try {
      check(!a.is_alias_of(b), "is_alias_of");
    } catch (const c10::Error&) {
      // Throwing is as good: never a silent "yes".
    }
    std::ostringstream stream;
    error_of<c10::Error>([&] { torch::save(at::Tensor(a), stream); }, "torch::save of a tensor");
    Net net;
    net->distribute(mesh);
    error_of<c10::Error>([&] { torch::save(net, stream); }, "torch::save of a module");
    error_of<c10::Error>([&] { dtensor::detail::wrap(a, &a.layout(), a.mesh().state(), a.sizes()); },
                         "a wrapped DTensor");
  });
}

TEST_CASE("torch::load into a module with DTensor parameters distributes the values") {
  std::stringstream stream;
  {
    Net saved;
    torch::save(saved, stream);
  }
  const auto bytes = stream.str();
  run_ranks(2, [&](int) {
    Net net, reference;
    net->distribute(line(2));
    {
      const torch::NoGradGuard no_grad;
      for (auto& p : net->parameters()) p.zero_();
    }
    std::istringstream input(bytes);
    torch::load(net, input);
    check_placed(net->a->weight, {Shard(0)}, "still placed");
    check_same(net, reference, "loaded");
  });
}

TEST_CASE("parameters of a TorchScript module become DTensors too") {
  run_ranks(2, [](int) {
    torch::jit::Module module("M");
    module.register_parameter("weight", values({8, 6}).set_requires_grad(true), false);
    module.define("def forward(self, x):\n  return torch.relu(torch.matmul(x, self.weight)).sum()\n");
    for (auto p : module.parameters()) p.set_data(place(p.detach(), line(2), {Shard(0)}));
    const auto x = values({4, 8}, 1);
    auto w = values({8, 6}).set_requires_grad(true);
    const auto expected = at::relu(at::matmul(x, w)).sum();
    for (int call = 0; call < 3; ++call) {
      const auto loss = module.forward({at::Tensor(place(x, line(2), {Replicate()}))}).toTensor();
      check_close(loss, expected, "loss");
      if (call == 0) loss.backward();
    }
    expected.backward();
    check_close((*module.parameters().begin()).grad(), w.grad(), "gradient");
  });
}

TEST_CASE("trap 21: what outlives a tensor holds no graph") {
  run_ranks(2, [](int) {
    struct Watched : torch::autograd::Function<Watched> {
      static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                const c10::IValue& witness) {
        context->saved_data["witness"] = witness;
        return x * 1;
      }
      static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                     torch::autograd::variable_list g) {
        return {g[0], at::Tensor()};
      }
    };
    struct Witness : torch::CustomClassHolder {};
    const auto mesh = line(2);
    auto witness = c10::make_intrusive<Witness>();
    c10::weak_intrusive_ptr<Witness> graph(witness);
    const auto x = leaf(values({4, 2}), mesh, {Shard(0)});
    auto h = Watched::apply(x, c10::IValue::make_capsule(witness));
    witness.reset();
    auto moved = constrain(h, {Replicate()}), again = constrain(h, {Replicate()});
    h.retain_grad();
    c10::weak_intrusive_ptr<c10::TensorImpl> weak(h.getIntrusivePtr());
    check(!graph.expired(), "alive while it is used");
    moved.reset();
    again.reset();
    h.reset();
    check(graph.expired(), "the graph is gone though the tensor has a weak reference");
  });
}
