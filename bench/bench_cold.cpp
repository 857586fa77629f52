// The first call of an operator: the decision is made, not found. Meshes of one, two and three dimensions, ranks as threads;
// what is placed so that nothing moves. The cache is emptied before each call; rank 0 measures its own.
//
// One JSON line per case: {"bench": "cold", "case": "mm 2-D", "plain_ns", "warm_ns", "here_ns"}. here_ns: with a miss.
#include "command_line.h"
#include "measure.h"

#include <comm/run_ranks.h>
#include <dtensor/all.h>
#include <dtensor/decision_cache.h>
#include <torch/torch.h>

using namespace dtensor;

namespace {

struct Case {
  const char* name;
  std::function<void(const at::Tensor&, const at::Tensor&)> run;  // an input cut along dim 0, a whole one
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"add", [](const at::Tensor& x, const at::Tensor&) { at::add(x, x); }},
      {"mm", [](const at::Tensor& x, const at::Tensor& w) { at::mm(x, w); }},
      {"transpose", [](const at::Tensor& x, const at::Tensor&) { x.transpose(0, 1); }},
      {"view", [](const at::Tensor& x, const at::Tensor&) { x.view({8, 2, 4}); }},
      {"sum", [](const at::Tensor& x, const at::Tensor&) { x.sum(1); }},
      {"softmax", [](const at::Tensor& x, const at::Tensor&) { x.softmax(-1); }},
      {"stack", [](const at::Tensor& x, const at::Tensor&) { at::stack({x, x}); }},
  };
  return all;
}

void measure(const DeviceMesh& mesh, bool print, int calls) {
  const torch::NoGradGuard no_grad;
  Placements cut(static_cast<std::size_t>(mesh.ndim()), Replicate()), whole = cut;
  cut[0] = Shard(0);
  const auto plain_x = torch::ones({8, 8}), plain_w = torch::ones({8, 8});
  const auto x = distribute_tensor(plain_x, mesh, cut), w = distribute_tensor(plain_w, mesh, whole);
  for (const auto& one : cases()) {
    one.run(x, w);
    std::vector<double> plain, warm, cold;
    for (int i = 0; i < calls; ++i) {
      plain.push_back(bench::time_calls([&] { one.run(plain_x, plain_w); }, 1));
      one.run(x, w);
      warm.push_back(bench::time_calls([&] { one.run(x, w); }, 1));
      DecisionCache::instance().clear();
      cold.push_back(bench::time_calls([&] { one.run(x, w); }, 1));
    }
    if (print)
      bench::print_line("cold", one.name + (" " + std::to_string(mesh.ndim())) + "-D",
                        {{"plain_ns", bench::median(plain)}, {"warm_ns", bench::median(warm)}, {"here_ns", bench::median(cold)}});
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("First calls: what it costs to decide");
  int calls = 101;
  options.number("--calls", calls, "first calls per case; the figure is their median");
  options.parse(argument_count, arguments);
  at::set_num_threads(1);
  const std::vector<std::string> names = {"a", "b", "c"};
  for (std::size_t dims = 1; dims <= 3; ++dims) {
    // Ranks take turns: rank 0 measures while the others are through or wait at their end.
    run_ranks(1 << dims, [&](int rank) {
      const auto mesh = init_device_mesh(c10::DeviceType::CPU, std::vector<std::int64_t>(dims, 2),
                                         {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(dims)});
      measure(mesh, rank == 0, rank == 0 ? calls : 1);
    });
  }
}
