// Optimizer steps over 50 parameters: plain LibTorch against DTensors of a mesh of one rank.
//
// One JSON line per case: {"bench": "optimizer", "case": "adamw 64", "plain_ns", "here_ns"}, per step.
#include "command_line.h"
#include "measure.h"

#include <dtensor/all.h>
#include <torch/torch.h>

using namespace dtensor;

namespace {

std::unique_ptr<torch::optim::Optimizer> make(const std::string& kind, std::int64_t width, const DeviceMesh* mesh) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 50; ++i) {
    const auto place = [&]() -> at::Tensor {
      const auto full = torch::randn({width, width});
      return mesh ? at::Tensor(distribute_tensor(full, *mesh, {Shard(0)})) : full;
    };
    auto parameter = place().detach().requires_grad_();
    parameter.mutable_grad() = place();
    parameters.push_back(parameter);
  }
  if (kind == "adamw") return std::make_unique<torch::optim::AdamW>(parameters, 1e-5);
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-5).momentum(0.9));
}

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("Optimizer steps on DTensors against plain tensors");
  int rounds = 5;
  double seconds = 0.2;
  options.number("--rounds", rounds, "rounds per case; the figure is their median");
  options.number("--seconds", seconds, "time of one measurement in a round");
  options.parse(argument_count, arguments);
  at::set_num_threads(1);
  init();
  {
    const auto mesh = init_device_mesh(c10::DeviceType::CPU, {1}, {"dp"});
    for (const std::string kind : {"adamw", "sgd"})
      for (const std::int64_t width : {64, 512}) {
        const auto plain = make(kind, width, nullptr), here = make(kind, width, &mesh);
        const auto [plain_ns, here_ns] = bench::compare([&] { plain->step(); }, [&] { here->step(); }, rounds, seconds);
        bench::print_line("optimizer", kind + " " + std::to_string(width), {{"plain_ns", plain_ns}, {"here_ns", here_ns}});
      }
  }
  shutdown();
}
