// From the start of a process to its first results: LibTorch loaded, and what this library adds.
//
//   dtensor-run -n 4 -- bench_startup
//
// One JSON line: {"bench": "startup", "case", "ranks", "plain_ms", "here_ms"}. plain_ms: from the start of the process until
// LibTorch is loaded and has made its first tensor; here_ms: what comes on top, for the interception, the world, a mesh of two
// dimensions with its groups, a first collective and a first operator, forward and backward. plain_ms is the slowest rank's,
// here_ms that of the rank that has loaded last: the others wait for it. The kernel tells when a process began to 10 ms.
#include "command_line.h"
#include "measure_ranks.h"

#include <dtensor/all.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>
#include <unistd.h>

using namespace dtensor;

namespace {

// Milliseconds since this process began: field 22 of /proc/self/stat, in clock ticks since the machine started.
double age_ms() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6 -
         std::stod(field) * 1e3 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("Time to a first result; start it with dtensor-run");
  options.parse(argument_count, arguments);
  at::set_num_threads(1);
  return bench::run_main([&] {
    const auto first = torch::ones({8, 8}).sum().item<float>();
    const double plain_ms = age_ms();
    World& world = init();
    const bool square = world.size() % 2 == 0 && world.size() > 2;
    const auto mesh = square ? init_device_mesh(c10::DeviceType::CPU, {2, -1}, {"dp", "tp"})
                             : init_device_mesh(c10::DeviceType::CPU, {1, -1}, {"dp", "tp"});
    auto x = distribute_tensor(torch::full({8, 8}, first / 64), mesh, {Shard(0), Shard(1)});
    x.set_requires_grad(true);
    const at::Tensor y = torch::mm(x, x.t());
    y.sum().backward();
    const auto whole = DTensor(y.detach()).full_tensor();
    const double here_ms = age_ms() - plain_ms;
    auto figures = torch::tensor({plain_ms, -here_ms}, at::kDouble);
    world.group().all_reduce(figures, ReduceOp::max).wait();
    if (world.rank() == 0)
      bench::print_line("startup", "to the first results", {{"ranks", world.size()},
                                                            {"plain_ms", figures[0].item<double>()},
                                                            {"here_ms", -figures[1].item<double>()}});
    TORCH_CHECK(whole.eq(8).all().item<bool>(), "wrong result");
    shutdown();
  });
}
