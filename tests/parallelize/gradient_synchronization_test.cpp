// Gradients after backward(): placed as their parameters, reduced once, in few collectives.
#include <dtensor/all.h>
#include <parallelize/all.h>

#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <mutex>
#include <stdexcept>
#include <string>

using namespace dtensor;

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

torch::nn::Sequential build() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(3, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2));
  model->to(torch::kDouble);
  return model;
}

ParallelPlan data_parallel(double bucket_mb = 25) {
  ParallelPlan plan;
  plan.data_parallel = DataParallel{};
  plan.data_parallel->bucket_mb = bucket_mb;
  return plan;
}

at::Tensor batch() { return torch::arange(21, torch::kDouble).view({7, 3}).cos(); }

void expect_equal_gradients(const torch::nn::Sequential& model, const torch::nn::Sequential& reference,
                            const char* when) {
  const auto parameters = model->parameters(), expected = reference->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    expect(as_dtensor(parameters[i].grad()).placements() == as_dtensor(parameters[i]).placements(),
           std::string(when) + ": a gradient is placed otherwise than its parameter");
    expect(torch::allclose(as_dtensor(parameters[i].grad()).full_tensor(), expected[i].grad(), 1e-12, 1e-14),
           std::string(when) + ": gradients differ");
  }
}

}  // namespace

TEST_CASE("one all-reduce a bucket, the mean over the global batch, uneven parts included") {
  for (int ranks : {2, 3, 4})
    run_ranks(ranks, [&](int) {
      const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"dp"});
      auto model = build(), reference = build();
      parallelize_module(*model, mesh, data_parallel());
      const at::Tensor x = distribute_tensor(batch(), mesh, {Shard(0)}, {.source = std::nullopt});
      const CollectiveCounter counter;
      model->forward(x).pow(2).mean().backward();
      expect(counter.count(Collective::all_reduce, "dp", "gradient") == 1, counter.to_string());
      expect(counter.total() == 1, "more than the gradients moved: " + counter.to_string());
      reference->forward(batch()).pow(2).mean().backward();
      expect_equal_gradients(model, reference, "first backward");
    });
}

TEST_CASE("small buckets make more collectives and the same gradients") {
  run_ranks(2, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"dp"});
    auto model = build(), reference = build();
    parallelize_module(*model, mesh, data_parallel(1e-6));
    const CollectiveCounter counter;
    model->forward(at::Tensor(distribute_tensor(batch(), mesh, {Shard(0)}))).sum().backward();
    expect(counter.count(Collective::all_reduce, "dp", "gradient") == 4, counter.to_string());
    reference->forward(batch()).sum().backward();
    expect_equal_gradients(model, reference, "small buckets");
  });
}

TEST_CASE("NoGradientSync: no communication until the first backward outside it") {
  run_ranks(2, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"dp"});
    auto model = build(), reference = build();
    parallelize_module(*model, mesh, data_parallel());
    const at::Tensor x = distribute_tensor(batch(), mesh, {Shard(0)}, {.source = std::nullopt});
    const auto step = [&] {
      model->forward(x).pow(2).sum().backward();
      reference->forward(batch()).pow(2).sum().backward();
    };
    {
      const NoGradientSync guard(*model);
      const CollectiveCounter counter;
      step();
      step();
      expect(counter.total() == 0, "moved inside the scope: " + counter.to_string());
    }
    const CollectiveCounter counter;
    step();
    expect(counter.count(Collective::all_reduce, "dp") == 1 && counter.total() == 1, counter.to_string());
    expect_equal_gradients(model, reference, "after the scope");
    // A reduced gradient meets a pending one again: still one reduction.
    const CollectiveCounter again;
    step();
    expect(again.count(Collective::all_reduce, "dp") == 1 && again.total() == 1, again.to_string());
    expect_equal_gradients(model, reference, "accumulated onto a reduced gradient");
  });
}

TEST_CASE("a parameter that nobody used keeps no gradient") {
  run_ranks(2, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"dp"});
    auto model = build();
    parallelize_module(*model, mesh, data_parallel());
    auto* first = model->children()[0]->as<torch::nn::LinearImpl>();
    first->forward(distribute_tensor(batch(), mesh, {Shard(0)})).sum().backward();
    expect(first->weight.grad().defined(), "the used one has a gradient");
    expect(!model->parameters()[2].grad().defined(), "the unused one has none");
  });
}

TEST_CASE("NoGradientSync on a module without a plan says so") {
  run_ranks(1, [](int) {
    auto model = build();
    try {
      const NoGradientSync guard(*model);
    } catch (const PlanError& error) {
      return expect(std::string(error.what()).find("no plan was applied") != std::string::npos, error.what());
    }
    throw std::runtime_error("not refused");
  });
}
