// A small program to start from: an MLP under tensor and data parallelism. Run: dtensor-run -n 4 -- mlp
#include <dtensor/all.h>
#include <parallelize/all.h>
#include <torch/torch.h>

#include <cstdio>

using namespace dtensor;

struct MlpImpl : torch::nn::Module {  // knows nothing of dtensor
  MlpImpl()
      : up(register_module("up", torch::nn::Linear(64, 256))),
        down(register_module("down", torch::nn::Linear(256, 64))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Mlp);

int main() {
  World& world = init();  // rank and size from the launcher's environment
  const auto plan = ParallelPlan::from_json(R"({"version": 1,
    "mesh": {"names": ["dp", "tp"], "shape": [-1, 2]},
    "tensor_parallel": {"dim": "tp", "rules": [{"match": "up", "style": "colwise"},
                                               {"match": "down", "style": "rowwise"}]},
    "data_parallel": {"dim": "dp"}})");
  const auto mesh = plan.make_mesh(world);
  Mlp model;
  parallelize_module(*model, mesh, plan);
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  for (int step = 0; step < 100; ++step) {
    const auto batch =
        distribute_tensor(torch::randn({32, 64}), mesh, {Shard(0), Replicate()});  // rank 0's values
    const auto loss = (model(batch) - batch).pow(2).mean();
    optimizer.zero_grad();
    loss.backward();  // gradients reduced over dp, in buckets
    clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    const double value = loss.item<double>();  // every rank reads it: a pending value is reduced
    if (world.rank() == 0 && step % 20 == 0) std::printf("step %d  loss %.4f\n", step, value);
  }
  shutdown();
}
