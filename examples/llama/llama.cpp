// Trains a small Llama under a plan: Hugging Face's dictionary as it is, or one in this project's format.
// Run: dtensor-run -n 2 -- llama examples/plans/llama_hugging_face.json
#include "llama.h"

#include <dtensor/all.h>
#include <parallelize/all.h>

#include <cstdio>

using namespace dtensor;

namespace {

void train(const std::string& path) {
  World& world = init();
  const auto plan = ParallelPlan::from_file(path);  // Hugging Face's have no mesh: all ranks are tensor parallel then
  const auto mesh = plan.mesh ? plan.make_mesh(world) : init_device_mesh(torch::kCPU, {-1}, plan.tensor_parallel_dims);
  torch::manual_seed(1);
  const llama::Options options;
  llama::Llama model(options);
  const auto report = parallelize_module(*model, mesh, plan);
  if (world.rank() == 0) std::printf("%s", report.to_string().c_str());

  // Sequences that count upwards from different starts.
  const auto all = (torch::arange(17) + torch::arange(4).unsqueeze(1) * 11).remainder(options.vocabulary);
  const auto place = [&](const torch::Tensor& part) {
    return distribute_tensor(part.contiguous(), mesh, Placements(static_cast<std::size_t>(mesh.ndim()), Replicate()));
  };
  const auto inputs = place(all.slice(1, 0, 16)), targets = place(all.slice(1, 1));
  torch::optim::AdamW optimizer(model->parameters(), 3e-3);
  for (int step = 0; step < 20; ++step) {
    const auto logits = model(inputs);
    const auto loss = vocab_parallel_cross_entropy(logits, targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    const double value = loss.item<double>();
    if (world.rank() == 0 && (step % 5 == 0 || step == 19)) std::printf("step %d  loss %.4f\n", step, value);
  }
  shutdown();
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: llama PLAN.json\n");
    return 1;
  }
  try {
    train(arguments[1]);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 2;
  }
}
