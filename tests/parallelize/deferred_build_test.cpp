// Modules built without memory: each rank draws its own part, the same values on every mesh.
#include "models.h"

#include <parallelize/all.h>

#include <catch2/catch_test_macros.hpp>

#include <fstream>
#include <map>
#include <mutex>

using namespace dtensor;
using namespace dtensor::testing;
namespace nn = torch::nn;

namespace {

// Everything that LibTorch's modules do to their tensors when they are made.
struct ZooImpl : nn::Module {
  ZooImpl() {
    tok = register_module("tok", nn::Embedding(nn::EmbeddingOptions(11, 6).padding_idx(2)));
    up = register_module("up", nn::Linear(6, 9));
    down = register_module("down", nn::Linear(nn::LinearOptions(9, 6).bias(false)));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    batch_norm = register_module("batch_norm", nn::BatchNorm1d(6));
    attention = register_module("attention", nn::MultiheadAttention(6, 2));
    lstm = register_module("lstm", nn::LSTM(6, 5));
    conv = register_module("conv", nn::Conv1d(6, 4, 3));
    own = register_parameter("own", torch::randn({5, 3}) * 0.5 + torch::arange(3));
    table = register_buffer("table", torch::pow(2.0, torch::arange(4)).outer(torch::ones({2})));
    nn::init::xavier_normal_(up->weight);
    nn::init::zeros_(up->bias);
  }
  nn::Embedding tok{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::BatchNorm1d batch_norm{nullptr};
  nn::MultiheadAttention attention{nullptr};
  nn::LSTM lstm{nullptr};
  nn::Conv1d conv{nullptr};
  at::Tensor own, table;
};
TORCH_MODULE(Zoo);

using Values = std::map<std::string, at::Tensor>;

Values built(const DeviceMesh& mesh, const std::vector<PlanRule>& rules, bool wide) {
  manual_seed(17);
  DeferredBuild deferred;
  auto model = deferred.build([&] {
    Zoo zoo;
    if (wide) zoo->to(at::kDouble);
    return zoo;
  });
  for (const auto& p : model->parameters()) check(p.is_meta(), "no memory yet");
  ParallelPlan plan;
  plan.rules = rules;
  plan.uncovered = Uncovered::replicate;
  check_contains(refusal_of<UnsupportedError>([&] { parallelize_module(*model, mesh, plan); }, "no memory"), "DeferredBuild");
  parallelize_module(*model, mesh, plan, {.deferred = &deferred});
  Values values;
  for (const auto& p : model->named_parameters()) {
    check(p.value().requires_grad() && p.value().is_leaf(), p.key());
    values[p.key()] = whole(p.value());
  }
  for (const auto& b : model->named_buffers()) values[b.key()] = whole(b.value());
  return values;
}

std::int64_t peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  return 0;
}

}  // namespace

TEST_CASE("a deferred build gives the same values on every mesh and under every plan") {
  for (const bool wide : {false, true}) {
    Values reference;
    run_ranks(1, [&](int) { reference = built(line(1), {}, wide); });
    CHECK(reference.at("tok.weight").select(0, 2).abs().sum().item<double>() == 0);
    CHECK(std::abs(reference.at("tok.weight").std().item<double>() - 1) < 0.3);
    CHECK(reference.at("up.weight").abs().sum().item<double>() > 0);
    CHECK(at::equal(reference.at("norm.weight"), at::ones_like(reference.at("norm.weight"))));
    CHECK(at::equal(reference.at("table").select(1, 0).to(at::kDouble), at::tensor({1., 2., 4., 8.}, at::kDouble)));
    const std::vector<PlanRule> rules = {{"tok", EmbeddingRowwise()}, {"up", ColwiseParallel()}, {"down", RowwiseParallel()}};
    for (const int ranks : {2, 3, 4})
      run_ranks(ranks, [&](int) {
        const auto mesh = ranks == 4 ? grid(2, 2) : line(ranks);
        const auto values = built(mesh, ranks == 3 ? std::vector<PlanRule>{{"tok", EmbeddingColwise()}} : rules, wide);
        check(values.size() == reference.size(), "names");
        for (const auto& [name, value] : reference) check_close(values.at(name), value, name, 1e-6);
      });
  }
}

TEST_CASE("a deferred model trains as one whose values were there from the start") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    manual_seed(5);
    const auto make = [] { return nn::Sequential(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 2)); };
    DeferredBuild deferred;
    auto model = deferred.build(make);
    torch::optim::SGD optimizer(model->parameters(), 0.1);  // made before there is memory
    ParallelPlan plan;
    plan.rules = {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}};
    const auto report = parallelize_module(*model, mesh, plan, {.deferred = &deferred});
    check(report.tensors.size() == 4, report.to_string());
    auto reference = make();
    {
      const at::NoGradGuard no_grad;
      const auto names = model->named_parameters();
      for (auto& p : reference->named_parameters()) p.value().copy_(whole(names[p.key()]));
    }
    torch::optim::SGD expected(reference->parameters(), 0.1);
    const auto x = values({4, 6}, 0, at::kFloat);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      expected.zero_grad();
      const auto loss = model->forward(at::Tensor(place(x, mesh, {Replicate()}))).pow(2).mean(),
                 wanted = reference->forward(x).pow(2).mean();
      check_close(loss, wanted, "loss", 1e-5);
      loss.backward();
      wanted.backward();
      optimizer.step();
      expected.step();
    }
  });
}

TEST_CASE("no rank holds a whole weight of a deferred model") {
  constexpr std::int64_t size = 4096;  // 64 MiB a weight, 256 MiB in all
  { std::ofstream("/proc/self/clear_refs") << "5"; }
  const auto before = peak_kilobytes();
  run_ranks(4, [&](int) {
    DeferredBuild deferred;
    auto model = deferred.build([&] {
      nn::Sequential net;
      for (int i = 0; i < 4; ++i) net->push_back(nn::Linear(nn::LinearOptions(size, size).bias(false)));
      return net;
    });
    ParallelPlan plan;
    plan.rules = {{"*", ColwiseParallel({}, Replicate())}};
    const auto report = parallelize_module(*model, line(4), plan, {.deferred = &deferred});
    check(report.local_bytes() * 4 == report.bytes(), "a quarter each");
  });
  // The four ranks share this process: 256 MiB in all, and what drawing one weight needs besides. Whole weights would be
  // 1 GiB.
  CHECK(peak_kilobytes() - before < 600 * 1024);
}
