// A plan for a deep model: how long it takes to check, to explain and to apply, on one rank.
//
//   bench_plan [--layers 1000] [--rounds 7]
//
// The model has Llama's modules, a Linear of each kind and two norms a layer, and tensors of a few elements, so that
// copying values costs nothing beside the plan. One JSON line per case: {"bench", "case", "layers", "tensors", "here_ms",
// "plain_ms"}; a figure is the median over rounds. plain_ms: what plain LibTorch takes for a walk over the same module that
// copies each parameter in place (set_data of a clone), which no plan can do without.
//   read      the plan's text              check     all faults of plan and module
//   explain   the report without applying  apply     parallelize_module of a module, mesh of one rank
//   deferred  the same for a module built without memory
#include "command_line.h"
#include "measure.h"

#include <parallelize/all.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

using namespace dtensor;

namespace {

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    for (const char* name : {"n1", "n2"}) register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    for (const char* name : {"wq", "wk", "wv", "wo", "w1", "w2", "w3"})
      register_module(name, torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  }
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(int layers) {
    auto blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < layers; ++i) blocks->push_back(Layer());
    register_module("tok", torch::nn::Embedding(8, 4));
    register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 8).bias(false)));
  }
};
TORCH_MODULE(Model);

constexpr const char* text = R"PLAN({
  "version": 1,
  "tensor_parallel": {"dim": "tp", "rules": [
    {"match": "tok", "style": "embedding_rowwise", "output": ["Shard(1)"]},
    {"match": "blocks.*.{wq,wk,wv,w1,w3}", "style": "colwise"},
    {"match": "blocks.*.{wo,w2}", "style": "rowwise", "output": ["Shard(1)"]},
    {"match": "blocks.*.{n1,n2}", "style": "sequence_parallel"},
    {"match": "head", "style": "colwise"}]}})PLAN";

double milliseconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// What any application in place costs without a plan.
void copy_in_place(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.set_data(parameter.detach().clone());
}

class Bench {
 public:
  Bench(int layers, int rounds) : layers_(layers), rounds_(rounds), mesh_(init_device_mesh(at::kCPU, {1}, {"tp"})) {}

  void run() {
    const auto plan = ParallelPlan::from_json(text);
    Model model(layers_);
    const auto description = describe(*model);
    tensors_ = description.tensors.size();
    const PlanMesh two{{"tp"}, {2}};
    plain_ms_ = measure([&] { copy_in_place(*model); });
    report("read", measure([] { ParallelPlan::from_json(text); }));
    report("check", measure([&] { check_plan(plan, description, two); }));
    report("explain", measure([&] { explain_plan(plan, description, two); }));
    std::vector<double> apply, deferred_apply;
    std::vector<Model> models;  // kept: a program applies a plan once, not on the heap that destroyed models leave
    for (int round = 0; round < rounds_; ++round) {
      Model fresh(layers_);
      models.push_back(fresh);
      apply.push_back(milliseconds([&] { parallelize_module(*fresh, mesh_, plan); }));
      DeferredBuild deferred;
      auto later = deferred.build([&] { return Model(layers_); });
      models.push_back(later);
      deferred_apply.push_back(milliseconds([&] { parallelize_module(*later, mesh_, plan, {.deferred = &deferred}); }));
    }
    report("apply", bench::median(apply));
    report("deferred", bench::median(deferred_apply));
  }

 private:
  double measure(const std::function<void()>& run) const {
    std::vector<double> figures;
    for (int round = 0; round < rounds_; ++round) figures.push_back(milliseconds(run));
    return bench::median(figures);
  }
  void report(const char* name, double here_ms) const {
    std::printf(
        "{\"bench\": \"plan\", \"case\": \"%s\", \"layers\": %d, \"tensors\": %zu, \"here_ms\": %.2f, \"plain_ms\": %.2f}\n",
        name, layers_, tensors_, here_ms, plain_ms_);
    std::fflush(stdout);
  }

  int layers_, rounds_;
  DeviceMesh mesh_;
  std::size_t tensors_ = 0;
  double plain_ms_ = 0;
};

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("Time to check, explain and apply a plan for a deep model, on one rank");
  int layers = 1000, rounds = 7;
  options.number("--layers", layers, "transformer layers");
  options.number("--rounds", rounds, "the figure is their median");
  options.parse(argument_count, arguments);
  return bench::run_main([&] {
    init();
    Bench(layers, rounds).run();
    shutdown();
  });
}
