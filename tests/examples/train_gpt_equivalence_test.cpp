// The main job against plain LibTorch: every mesh, with and without sequence parallel, in float64 and float32; the
// collectives of a transformer block; the memory of a rank.
#include "distributed.h"
#include "gpt.h"
#include "train.h"
#include "train_gpt_support.h"

#include <dtensor/all.h>
#include <parallelize/all.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

using namespace train_gpt;
using train_gpt_test::project;
using train_gpt_test::small_job;

namespace {

dtensor::ParallelPlan plan_for(std::int64_t dp, std::int64_t tp, bool sequence_parallel) {
  auto plan = dtensor::ParallelPlan::from_file(
      (project() / "examples/plans" / (sequence_parallel ? "gpt_2d_sp.json" : "gpt_2d.json")).string());
  plan.mesh = dtensor::PlanMesh{{"dp", "tp"}, {dp, tp}};
  plan.policy = dtensor::Policy{dtensor::Fallback::error, dtensor::ImplicitMoves::allow,
                                dtensor::PlainTensors::replicate_checked};
  return plan;
}

std::string write_plan(const dtensor::ParallelPlan& plan) {
  const auto path = std::filesystem::temp_directory_path() / "dtensor_equivalence_plan.json";
  std::ofstream(path) << plan.to_json();
  return path.string();
}

double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

GPT build(std::int64_t layers, std::int64_t heads = 4) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(5);
  GPT model(GPTOptions{32, 32, heads, layers, 16, 0, false});
  model->to(torch::kFloat64);
  return model;
}

struct Tokens {
  at::Tensor inputs, targets;
};
Tokens tokens(const dtensor::DeviceMesh& mesh) {
  const auto all = torch::arange(4 * 17, torch::kInt64).mul(7).remainder(32).view({4, 17});
  const auto place = [&](const at::Tensor& part) {
    return dtensor::distribute_tensor(part.contiguous(), mesh, {dtensor::Shard(0), dtensor::Replicate()},
                                      {.source = std::nullopt});
  };
  return {place(all.slice(1, 0, 16)), place(all.slice(1, 1, 17))};
}
at::Tensor loss_of(GPT& model, const Tokens& batch) {
  const auto logits = model(batch.inputs);
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), batch.targets.view({-1}));
}

using Counts = std::map<std::string, std::int64_t>;  // "forward tp all_gather" -> calls

// Collectives of one step with this many layers, gradient synchronisation aside.
Counts count(std::int64_t layers, std::int64_t dp, std::int64_t tp, bool sequence_parallel) {
  Counts counts;
  std::mutex mutex;
  dtensor::run_ranks(static_cast<int>(dp * tp), [&](int) {
    auto& world = dtensor::World::current();
    const auto plan = plan_for(dp, tp, sequence_parallel);
    const auto mesh = dtensor::make_mesh(plan, world);
    auto model = build(layers);
    dtensor::parallelize_module(*model, mesh, plan);
    const auto batch = tokens(mesh);
    Counts mine;
    const auto take = [&](const char* phase, const dtensor::CollectiveCounter& counter) {
      for (const auto& [key, tally] : counter.tallies())
        if (key.reason != "gradient" && key.reason != "check")
          mine[std::string(phase) + " " + key.group + " " + dtensor::to_string(key.collective)] += tally.calls;
    };
    dtensor::CollectiveCounter forward(world);
    const auto loss = loss_of(model, batch);
    take("forward", forward);
    dtensor::CollectiveCounter backward(world);
    loss.backward();
    take("backward", backward);
    const std::lock_guard lock(mutex);
    if (counts.empty()) counts = mine;
    if (counts != mine) throw std::runtime_error("ranks count different collectives");
  });
  return counts;
}

Counts per_block(std::int64_t dp, std::int64_t tp, bool sequence_parallel) {
  auto counts = count(2, dp, tp, sequence_parallel);
  for (const auto& [key, calls] : count(1, dp, tp, sequence_parallel)) counts[key] -= calls;
  std::erase_if(counts, [](const auto& entry) { return entry.second == 0; });
  return counts;
}

}  // namespace

TEST_CASE("20 steps on every mesh equal plain LibTorch") {
  struct Mesh {
    std::int64_t dp, tp;
  };
  const bool sequence_parallel = GENERATE(false, true);
  const bool wide = GENERATE(true, false);
  TrainOptions options = small_job();
  options.dtype = wide ? "float64" : "float32";
  const auto plain = train(options, *plain_setting());
  for (const auto& mesh : {Mesh{1, 2}, Mesh{2, 1}, Mesh{2, 2}, Mesh{1, 4}}) {
    INFO("mesh (" << mesh.dp << ", " << mesh.tp << "), sequence parallel " << sequence_parallel << ", " << options.dtype);
    const auto path = write_plan(plan_for(mesh.dp, mesh.tp, sequence_parallel));
    std::vector<TrainResult> ranks(static_cast<std::size_t>(mesh.dp * mesh.tp));
    dtensor::run_ranks(static_cast<int>(ranks.size()), [&](int rank) {
      ranks[static_cast<std::size_t>(rank)] = train(options, *plan_setting(path, dtensor::World::current()));
    });
    for (const auto& result : ranks) {
      for (std::size_t step = 0; step < plain.losses.size(); ++step)
        CHECK(relative(result.losses[step], plain.losses[step]) < (wide ? 1e-9 : 2e-5));
      for (const auto& [name, expected] : plain.parameters) {
        INFO(name);
        const auto& value = result.parameters.at(name);
        if (wide)
          CHECK((value - expected).abs().max().item<double>() < 1e-9);
        else
          CHECK((value - expected).norm().item<double>() <= 1e-4 * expected.norm().item<double>());
      }
    }
  }
}

TEST_CASE("collectives per transformer block") {
  const bool two_dimensional = GENERATE(false, true);
  const std::int64_t dp = two_dimensional ? 2 : 1;
  CHECK(per_block(dp, 2, false) == Counts{{"forward tp all_reduce", 2}, {"backward tp all_reduce", 2}});
  CHECK(per_block(dp, 2, true) == Counts{{"forward tp all_gather", 2},
                                         {"forward tp reduce_scatter", 2},
                                         {"backward tp all_gather", 2},
                                         {"backward tp reduce_scatter", 2}});
}

TEST_CASE("a rank holds its share of parameters, gradients and optimizer state") {
  const bool sequence_parallel = GENERATE(false, true);
  dtensor::run_ranks(4, [&](int) {
    const auto plan = plan_for(2, 2, sequence_parallel);
    const auto mesh = dtensor::make_mesh(plan, dtensor::World::current());
    auto model = build(2);
    const auto report = dtensor::parallelize_module(*model, mesh, plan);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    loss_of(model, tokens(mesh)).backward();
    optimizer.step();
    const std::int64_t limit = report.bytes() / 2 + report.replicated_bytes();
    std::int64_t parameters = 0, gradients = 0, state = 0;
    const auto local_bytes = [](const at::Tensor& tensor) {
      return static_cast<std::int64_t>(dtensor::as_dtensor(tensor.detach()).to_local().nbytes());
    };
    for (const auto& parameter : model->parameters()) {
      parameters += local_bytes(parameter);
      gradients += local_bytes(parameter.grad());
      const auto& entry = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer.state().at(parameter.unsafeGetTensorImpl()));
      state += local_bytes(entry.exp_avg()) + local_bytes(entry.exp_avg_sq());
      if (dtensor::as_dtensor(parameter.grad()).placements() != dtensor::as_dtensor(parameter).placements())
        throw std::runtime_error("a gradient is not placed as its parameter");
    }
    if (parameters > limit || gradients > limit || state > 2 * limit || parameters != report.local_bytes())
      throw std::runtime_error("a rank holds more than its share:\n" + report.to_string());
  });
}

TEST_CASE("a batch that the data-parallel size does not divide, and fewer rows than it") {
  TrainOptions options = small_job();
  options.steps = 3;
  options.vocabulary = 257;
  options.batch = GENERATE(1, 3, 5);
  const bool sequence_parallel = GENERATE(false, true);
  INFO("batch " << options.batch << ", sequence parallel " << sequence_parallel);
  const auto plain = train(options, *plain_setting());
  const auto path = write_plan(plan_for(2, 2, sequence_parallel));
  std::vector<TrainResult> ranks(4);
  dtensor::run_ranks(4, [&](int rank) {
    ranks[static_cast<std::size_t>(rank)] = train(options, *plan_setting(path, dtensor::World::current()));
  });
  for (const auto& result : ranks) CHECK(train_gpt_test::largest_difference(plain, result) < 1e-9);
}

TEST_CASE("heads that do not divide by the tensor-parallel size are refused by name") {
  const auto refusal = [] {
    dtensor::run_ranks(3, [&](int) {
      const auto plan = plan_for(1, 3, false);
      const auto mesh = dtensor::make_mesh(plan, dtensor::World::current());
      auto model = build(1);
      const dtensor::CollectiveCounter counter;
      try {
        dtensor::parallelize_module(*model, mesh, plan, {.heads = {{"blocks.*.attn.{wq,wk,wv}", 4}}});
      } catch (const dtensor::PlanError& error) {
        const std::string text = error.what_without_backtrace();
        for (const char* part : {"blocks.0.attn.wq", "4 attention heads", "3 ranks", "Choose"})
          if (text.find(part) == std::string::npos) throw std::runtime_error("missing in: " + text);
        if (counter.total() != 0 || dtensor::is_dtensor(model->head->weight))
          throw std::runtime_error("something happened before the refusal");
        return;
      }
      throw std::runtime_error("not refused");
    });
  };
  REQUIRE_NOTHROW(refusal());
}
