// Public failures of other systems that concern saving, loading and copying, restated; each test bears its number.
#include <parallelize/all.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <unistd.h>
#include <filesystem>
#include <mutex>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

// A file that goes with the test.
struct TemporaryFile {
  explicit TemporaryFile(const std::string& name)
      : path((std::filesystem::temp_directory_path() / (name + "." + std::to_string(::getpid()))).string()) {}
  ~TemporaryFile() { std::filesystem::remove(path); }
  std::string path;
};

void fill(torch::nn::Module& module, int seed = 0) {
  module.to(at::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& p : module.parameters()) p.copy_(values(p.sizes(), seed++) * 0.4);
}

torch::nn::Linear linear(std::int64_t from, std::int64_t to, int seed = 0) {
  torch::nn::Linear result(from, to);
  fill(*result, seed);
  return result;
}

// Places a parameter otherwise than any style does.
void place_in(at::Tensor& parameter, const DeviceMesh& mesh, const Placements& placements) {
  const torch::NoGradGuard no_grad;
  parameter.set_data(place(parameter.detach(), mesh, placements));
}

ParallelPlan plan_of(std::vector<PlanRule> rules) {
  ParallelPlan plan;
  plan.rules = std::move(rules);
  return plan;
}

}  // namespace

TEST_CASE("K59: a full state into a module cut over two mesh dimensions by sizes that do not divide") {
  const TemporaryFile file("dtensor_k59");
  for (const std::int64_t out : {3, 1}) {
    torch::save(linear(17, out, 5), file.path);
    const auto reference = linear(17, out, 5);
    const auto check_read = [&](const DeviceMesh& mesh, const Placements& weight, const Placements& bias) {
      for (const bool by_rank : {false, true}) {
        auto module = linear(17, out);
        place_in(module->weight, mesh, weight);
        place_in(module->bias, mesh, bias);
        if (by_rank)
          torch::load(module, file.path);
        else
          load(*module, file.path);
        check_placed(module->weight, weight, "weight");
        check_close(module->weight, reference->weight, "weight");
        check_close(module->bias, reference->bias, "bias");
      }
    };
    run_ranks(4, [&](int) {
      check_read(grid(2, 2), {Shard(0), Shard(1)}, {Shard(0), Replicate()});
      check_read(grid(2, 2), {Shard(1), Shard(1)}, {Shard(0), Shard(0)});
      check_read(line(4, "dp"), {Shard(0)}, {Shard(0)});
    });
  }
}

TEST_CASE("K60: fused gate and up weights after a change of rank count") {
  struct NetImpl : torch::nn::Module {
    NetImpl() : gate_up(register_module("gate_up", torch::nn::Linear(2, 8))) {
      to(at::kDouble);
      const torch::NoGradGuard no_grad;
      gate_up->weight.copy_(at::arange(8, at::kDouble).unsqueeze(1).expand({8, 2}));
      gate_up->bias.copy_(at::arange(8, at::kDouble) / 8);
    }
    torch::nn::Linear gate_up;
  };
  const TemporaryFile file("dtensor_k60");
  const auto plan = plan_of({{"gate_up", PackedColwise({4, 4})}});
  run_ranks(4, [&](int) {
    NetImpl net;
    parallelize_module(net, line(4), plan);
    save(net, file.path);
  });
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [&](int) {
      NetImpl net, reference;
      fill(net, 3);
      parallelize_module(net, line(ranks), plan);
      load(net, file.path);
      check_placed(net.gate_up->weight, {Interleaved(0, {4, 4})}, "weight");
      check_close(net.gate_up->weight, reference.gate_up->weight, "rows in order");
      const auto x = values({3, 2});
      check_close(net.gate_up->forward(place(x, line(ranks), {Replicate()})), reference.gate_up->forward(x), "output");
    });
  auto plain = std::make_shared<NetImpl>();
  fill(*plain, 3);
  torch::load(plain, file.path);
  CHECK(at::equal(plain->gate_up->weight, NetImpl().gate_up->weight));
}

namespace {

// A cut vector, a number and an empty matrix; their gradients depend on step and value.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    vector = register_parameter("vector", values({4}));
    number = register_parameter("number", at::scalar_tensor(0.7, at::kDouble));
    nothing = register_parameter("nothing", at::empty({0, 3}, at::kDouble));
  }
  void distribute(const DeviceMesh& mesh) {
    place_in(vector, mesh, {Shard(0)});
    place_in(number, mesh, {Replicate()});
    place_in(nothing, mesh, {Replicate()});
  }
  void train(torch::optim::Optimizer& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      (vector.pow(2).sum() * number + nothing.sum()).backward();
      optimizer.step();
    }
  }
  at::Tensor vector, number, nothing;
};

torch::optim::AdamW adam_w(const OddImpl& module) {
  return torch::optim::AdamW(module.parameters(), torch::optim::AdamWOptions(0.05).amsgrad(true));
}

using StateShapes = std::vector<std::pair<std::vector<std::int64_t>, at::ScalarType>>;
StateShapes shapes(torch::optim::Optimizer& optimizer) {
  StateShapes result;
  dtensor::detail::visit_optimizer_state(optimizer, [&](const at::Tensor&, at::Tensor& state) {
    result.emplace_back(state.sizes().vec(), state.scalar_type());
  });
  return result;
}

}  // namespace

TEST_CASE("K62: step counters and 0-dimensional state on resume") {
  OddImpl reference;
  auto expected = adam_w(reference);
  reference.train(expected, 6);
  const TemporaryFile weights("dtensor_k62_weights"), state("dtensor_k62_state");
  run_ranks(2, [&](int) {
    OddImpl net;
    net.distribute(line(2));
    auto optimizer = adam_w(net);
    net.train(optimizer, 3);
    save(net, weights.path);
    save(optimizer, state.path);
    check(shapes(optimizer) == shapes(expected), "saving leaves the state as it was");
    net.train(optimizer, 3);
    check_close(net.vector, reference.vector, "six steps", 1e-12);
  });
  for (const int ranks : {1, 4})
    run_ranks(ranks, [&](int) {
      OddImpl net;
      net.distribute(line(ranks));
      auto optimizer = adam_w(net);
      load(net, weights.path);
      load(optimizer, state.path);
      check(shapes(optimizer) == shapes(expected), "shapes and dtypes of the state");
      const auto& entry = static_cast<torch::optim::AdamWParamState&>(
          *optimizer.state().at(net.vector.unsafeGetTensorImpl()));
      check(entry.step() == 3, "step counter");
      check_placed(entry.exp_avg(), {Shard(0)}, "a moment lies as its parameter");
      net.train(optimizer, 3);
      check_close(net.vector, reference.vector, "vector", 1e-12);
      check_close(net.number, reference.number, "number", 1e-12);
      check(net.nothing.sizes() == at::IntArrayRef({0, 3}), "the empty one");
    });
  const auto plain = std::make_shared<OddImpl>();  // and on one device
  auto optimizer = adam_w(*plain);
  torch::load(plain, weights.path);
  torch::load(optimizer, state.path);
  plain->train(optimizer, 3);
  CHECK(at::allclose(plain->vector, reference.vector, 1e-12, 1e-12));
}

TEST_CASE("K63: copies of a parallel module have storage of their own and the same mesh") {
  struct NetImpl : torch::nn::Cloneable<NetImpl> {
    NetImpl() { reset(); }
    void reset() override {
      up = register_module("up", torch::nn::Linear(6, 8));
      down = register_module("down", torch::nn::Linear(8, 6));
    }
    at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }
    torch::nn::Linear up{nullptr}, down{nullptr};
  };
  const TemporaryFile file("dtensor_k63");
  run_ranks(2, [&](int) {
    const auto mesh = line(2);
    const auto net = std::make_shared<NetImpl>();
    fill(*net);
    parallelize_module(*net, mesh, plan_of({{"up", ColwiseParallel()}, {"down", RowwiseParallel()}}));
    static std::mutex generator;  // clone() draws weights before it copies them; LibTorch has one generator
    std::shared_ptr<NetImpl> copy;
    {
      const std::lock_guard lock(generator);
      copy = std::dynamic_pointer_cast<NetImpl>(net->clone());
    }
    const auto x = place(values({3, 6}), mesh, {Replicate()});
    const auto before = whole(net->forward(x));
    check_close(copy->forward(x), before, "the copy's output");
    check(DTensor(copy->up->weight.detach()).mesh() == mesh, "the same mesh");
    torch::optim::SGD optimizer(copy->parameters(), 0.1);
    copy->forward(x).pow(2).sum().backward();
    optimizer.step();
    check_close(net->forward(x), before, "the original is untouched");
    check(!at::allclose(whole(copy->forward(x)), before), "the copy was trained");
    // A handle is never serialised: torch::save refuses with the way, save() writes whole values.
    check_contains(error_of<c10::Error>([&] { torch::save(net, file.path + ".no"); }, "torch::save"), "to_local()");
    check_contains(error_of<c10::Error>([&] { torch::save(net->up->weight, file.path + ".no"); }, "torch::save"),
                   "to_local()");
    save(*net, file.path);
    if (World::current().rank() == 0) std::filesystem::remove(file.path + ".no");
  });
  const auto plain = std::make_shared<NetImpl>(), expected = std::make_shared<NetImpl>();
  fill(*plain, 9);
  fill(*expected);
  torch::load(plain, file.path);
  CHECK(at::equal(plain->down->weight, expected->down->weight));
}

TEST_CASE("save and load tell what went wrong on all ranks alike") {
  const TemporaryFile file("dtensor_save_faults");
  struct NetImpl : torch::nn::Module {
    explicit NetImpl(std::int64_t size) : fc(register_module("fc", torch::nn::Linear(4, size))) { fill(*this); }
    torch::nn::Linear fc;
  };
  run_ranks(3, [&](int) {
    const auto mesh = line(3);
    NetImpl net(6), other(7);
    parallelize_module(net, mesh, plan_of({{"fc", ColwiseParallel()}}));
    parallelize_module(other, mesh, plan_of({{"fc", ColwiseParallel()}}));
    error_of<Error>([&] { save(net, "/nowhere/at/all"); }, "a folder that is not there");
    error_of<Error>([&] { load(net, "/nowhere/at/all"); }, "a file that is not there");
    save(other, file.path);
    check_contains(error_of<Error>([&] { load(net, file.path); }, "other sizes"), "[7, 4] in the file and [6, 4]");
    check_close(net.fc->weight, NetImpl(6).fc->weight, "nothing changed");
  });
}

TEST_CASE("the state of an optimizer that has stepped follows its parameters on and off the mesh") {
  struct NetImpl : torch::nn::Module {
    NetImpl()
        : up(register_module("up", torch::nn::Linear(4, 6))), down(register_module("down", torch::nn::Linear(6, 4))) {
      fill(*this);
    }
    at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))).pow(2).mean(); }
    torch::nn::Linear up, down;
  };
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  using namespace torch::optim;
  const std::vector<std::pair<std::string, Make>> makers = {
      {"SGD", [](auto p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9)); }},
      {"Adam", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.02).amsgrad(true)); }},
      {"AdamW", [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions(0.02)); }},
      {"RMSprop", [](auto p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).momentum(0.5).centered(true)); }},
      {"Adagrad", [](auto p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.05)); }},
      {"LBFGS", [](auto p) { return std::make_unique<LBFGS>(p, LBFGSOptions(0.5).max_iter(4)); }},
  };
  for (const auto& [name, make] : makers)
    run_ranks(2, [name = name, make = make](int) {
      const auto mesh = line(2);
      NetImpl net, reference;
      const auto optimizer = make(net.parameters()), expected = make(reference.parameters());
      const auto full = values({3, 4});
      const auto step = [](NetImpl& n, Optimizer& o, const at::Tensor& x) {
        o.step([&] {
          o.zero_grad();
          auto loss = n.forward(x);
          loss.backward();
          return loss;
        });
      };
      const auto compare = [&](const std::string& text) {
        const auto theirs = reference.named_parameters();
        for (const auto& p : net.named_parameters())
          check_close(p.value(), theirs[p.key()], name + " " + text + ": " + p.key(), 1e-9);
      };
      step(net, *optimizer, full);
      step(reference, *expected, full);
      parallelize_module(net, mesh, plan_of({{"up", ColwiseParallel()}, {"down", RowwiseParallel()}}),
                         {.optimizers = {optimizer.get()}});
      for (int i = 0; i < 2; ++i) {
        step(net, *optimizer, place(full, mesh, {Replicate()}));
        step(reference, *expected, full);
        compare("on the mesh");
      }
      unparallelize(net, {optimizer.get()});
      step(net, *optimizer, full);
      step(reference, *expected, full);
      compare("on one device again");
    });
}
