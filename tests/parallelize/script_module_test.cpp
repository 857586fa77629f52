// TorchScript modules, loaded from a file, under a plan.
#include <parallelize/all.h>
#include <support/check.h>
#include <torch/script.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <sstream>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

using Unit = std::shared_ptr<torch::jit::CompilationUnit>;

torch::jit::Module leaf_module(const Unit& unit, const std::string& type, const std::string& code,
                               const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  torch::jit::Module module(c10::QualifiedName("__torch__.torch.nn.modules." + type), unit, true);
  for (const auto& [name, value] : parameters)
    module.register_parameter(name, value.detach().clone().set_requires_grad(true), false);
  module.define(code);
  return module;
}

// What torch.jit.script makes of an embedding, a norm and two Linears, as the bytes of its file.
std::string file() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const auto linear = [&](std::int64_t from, std::int64_t to, int seed) {
    return leaf_module(unit, "linear.Linear", "def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n",
                       {{"weight", values({to, from}, seed) * 0.4}, {"bias", values({to}, seed + 1)}});
  };
  torch::jit::Module net("__torch__.Net", unit);
  net.register_module("tok", leaf_module(unit, "sparse.Embedding",
                                         "def forward(self, x):\n  return torch.embedding(self.weight, x)\n",
                                         {{"weight", values({11, 6})}}));
  net.register_module("norm", leaf_module(unit, "normalization.LayerNorm",
                                          "def forward(self, x):\n  return torch.layer_norm(x, [6], self.weight, self.bias)\n",
                                          {{"weight", values({6}, 1) + 2}, {"bias", values({6}, 2)}}));
  net.register_module("up", linear(6, 8, 3));
  net.register_module("down", linear(8, 6, 5));
  net.register_buffer("scale", at::scalar_tensor(1.5, at::kDouble));
  net.define(R"(
def forward(self, tokens):
  x = self.tok.forward(tokens)
  if x.size(0) > 1:
    x = x * self.scale
  return x + self.down.forward(torch.gelu(self.up.forward(self.norm.forward(x))))
)");
  std::ostringstream stream;
  net.save(stream);
  return stream.str();
}

torch::jit::Module load_module(const std::string& bytes) {
  std::istringstream stream(bytes);
  return torch::jit::load(stream);
}

}  // namespace

TEST_CASE("a TorchScript module under a plan equals the plain one, call after call") {
  const auto bytes = file();
  for (const bool sequence_parallel : {false, true})
    for (const int ranks : {2, 3})
      run_ranks(ranks, [&](int) {
        const auto mesh = line(ranks);
        auto net = load_module(bytes), reference = load_module(bytes);
        ParallelPlan plan;
        const std::optional<Placement> stream = sequence_parallel ? std::optional<Placement>(Shard(1)) : std::nullopt;
        plan.rules = {{"tok", EmbeddingRowwise(stream)}, {"up", ColwiseParallel()}, {"down", RowwiseParallel({}, stream)}};
        if (sequence_parallel) plan.rules.push_back({"norm", SequenceParallel()});
        const auto report = parallelize_module(net, mesh, plan);
        check(report.tensors.size() == 8, report.to_string());
        check_placed(net.attr("up").toModule().attr("weight").toTensor(), {Shard(0)}, "up");
        const auto tokens = (at::arange(12, at::kLong) * 5).remainder(11).view({2, 6});
        std::vector<at::Tensor> mine, theirs;
        for (const auto& p : net.parameters()) mine.push_back(p);
        for (const auto& p : reference.parameters()) theirs.push_back(p);
        torch::optim::AdamW optimizer(mine, torch::optim::AdamWOptions(0.01)), expected(theirs, torch::optim::AdamWOptions(0.01));
        // The executor profiles its first calls and optimises later ones.
        for (int step = 0; step < 5; ++step) {
          optimizer.zero_grad();
          expected.zero_grad();
          const auto y = net.forward({at::Tensor(place(tokens, mesh, {Replicate()}))}).toTensor(),
                     wanted = reference.forward({tokens}).toTensor();
          check_placed(y, {stream.value_or(Replicate())}, "output");
          check_close(y, wanted, fmt::format("output of step {}", step), 1e-10);
          y.pow(2).sum().backward();
          wanted.pow(2).sum().backward();
          for (std::size_t i = 0; i < mine.size(); ++i) check_close(mine[i].grad(), theirs[i].grad(), "gradient", 1e-9);
          optimizer.step();
          expected.step();
        }
        check_contains(refusal_of<PlanError>([&] { parallelize_module(net, mesh, plan); }, "twice"), "parallelised before");
        unparallelize(net);
        check_close(net.forward({tokens}).toTensor(), reference.forward({tokens}).toTensor(), "plain again", 1e-9);
      });
}

TEST_CASE("plans for TorchScript modules are checked as for others") {
  const auto bytes = file();
  run_ranks(2, [&](int) {
    auto net = load_module(bytes);
    ParallelPlan plan;
    plan.rules = {{"upp", ColwiseParallel()}, {"norm", ColwiseParallel()}};
    const auto text = refusal_of<PlanError>([&] { parallelize_module(net, line(2), plan); }, "a bad plan");
    check_contains(text, "did you mean \"up\"");
    check_contains(text, "does not suit");
    torch::jit::Module empty("__torch__.Empty");
    check_contains(refusal_of<UnsupportedError>([&] { parallelize_module(empty, line(2), plan); }, "no parameters"), "frozen");
  });
}
