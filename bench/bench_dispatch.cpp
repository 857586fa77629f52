// What being distributed costs per operator: the same call on plain tensors and on DTensors of a mesh of one rank, so that
// nothing is ever communicated. Tensors are small: the operator's own work hardly counts.
//
//   bench_dispatch [--filter view] [--rounds 5] [--seconds 0.02] [--only here | --only both] [--count 20000]
//
// One JSON line per case: {"bench": "dispatch", "case", "plain_ns", "here_ns"}. Cases that end in " grad" run forward and
// backward. --only runs a fixed number of calls and takes no time: one side, for profilers such as perf, or both, each within
// bench_profiled_calls(), for instructions.py. It prints the names of the cases.
#include "command_line.h"
#include "measure.h"

#include <dtensor/all.h>
#include <torch/torch.h>

using namespace dtensor;

// A name that callgrind can be told to count within.
extern "C" __attribute__((noinline)) void bench_profiled_calls(const std::function<void()>* run, int count) {
  for (int i = 0; i < count; ++i) (*run)();
}

namespace {

// The inputs of the cases, plain or distributed.
struct Inputs {
  at::Tensor a, b, out, row, batch, other_batch, mask, table, indices, logits, targets, weight, bias;
  std::vector<at::Tensor> list, gradients, first_moments, second_moments, steps;

  explicit Inputs(const std::function<at::Tensor(const at::Tensor&)>& place) {
    torch::manual_seed(0);
    const auto random = [&](c10::IntArrayRef sizes) { return place(torch::randn(sizes)); };
    a = random({8, 8});
    b = random({8, 8});
    out = random({8, 8});
    row = random({8});
    batch = random({2, 8, 8});
    other_batch = random({2, 8, 8});
    mask = place(torch::randn({8, 8}) > 0);
    table = random({16, 8});
    indices = place(torch::randint(0, 16, {8}, at::kLong));
    logits = random({8, 16});
    targets = place(torch::randint(0, 16, {8}, at::kLong));
    weight = place(torch::ones({8}));
    bias = place(torch::zeros({8}));
    for (int i = 0; i < 4; ++i) {
      list.push_back(random({8, 8}));
      gradients.push_back(random({8, 8}));
      first_moments.push_back(place(torch::zeros({8, 8})));
      second_moments.push_back(place(torch::zeros({8, 8})));
      steps.push_back(place(torch::ones({})));
    }
  }
};

using Run = std::function<void(Inputs&)>;
struct Case {
  const char* name;
  Run run;
  // Forward and backward: the function of inputs that require grad, whose result is summed. Empty: forward alone.
  std::function<at::Tensor(Inputs&, const at::Tensor&)> differentiable = {};
};

std::vector<Case> cases() {
  namespace F = torch::nn::functional;
  const auto of = [](const char* name, std::function<at::Tensor(Inputs&, const at::Tensor&)> function) {
    return Case{name, [function](Inputs& in) { function(in, in.a); }, function};
  };
  return {
      of("add", [](Inputs& in, const at::Tensor& x) { return x + in.b; }),
      of("mm", [](Inputs& in, const at::Tensor& x) { return x.mm(in.b); }),
      {"detach", [](Inputs& in) { in.a.detach(); }},
      of("transpose", [](Inputs&, const at::Tensor& x) { return x.transpose(0, 1); }),
      of("view", [](Inputs&, const at::Tensor& x) { return x.view({64}); }),
      of("reshape", [](Inputs&, const at::Tensor& x) { return x.reshape({4, 16}); }),
      {"mul_ scalar", [](Inputs& in) { in.a.mul_(1.0); }},
      {"add_", [](Inputs& in) { in.a.add_(in.b, 1e-6); }},
      {"add out", [](Inputs& in) { at::add_out(in.out, in.a, in.b); }},
      of("slice", [](Inputs&, const at::Tensor& x) { return x.slice(1, 2, 6); }),
      of("cat", [](Inputs& in, const at::Tensor& x) { return at::cat({x, in.b}, 0); }),
      of("stack", [](Inputs& in, const at::Tensor& x) { return at::stack({x, in.b}); }),
      of("split", [](Inputs&, const at::Tensor& x) { return x.split(4, 1)[0]; }),
      of("sum", [](Inputs&, const at::Tensor& x) { return x.sum(0); }),
      of("mean", [](Inputs&, const at::Tensor& x) { return x.mean(); }),
      of("softmax", [](Inputs&, const at::Tensor& x) { return x.softmax(-1); }),
      of("layer_norm", [](Inputs& in, const at::Tensor& x) { return at::layer_norm(x, {8}, in.weight, in.bias); }),
      of("relu", [](Inputs&, const at::Tensor& x) { return x.relu(); }),
      of("gelu", [](Inputs&, const at::Tensor& x) { return at::gelu(x); }),
      of("dropout", [](Inputs&, const at::Tensor& x) { return at::dropout(x, 0.5, true); }),
      {"rand_like", [](Inputs& in) { at::rand_like(in.a); }},
      {"uniform_", [](Inputs& in) { in.out.uniform_(); }},
      {"embedding", [](Inputs& in) { at::embedding(in.table, in.indices); }},
      {"cross_entropy", [](Inputs& in) { at::cross_entropy_loss(in.logits, in.targets); }},
      {"zeros_like", [](Inputs& in) { at::zeros_like(in.a); }},
      of("clone", [](Inputs&, const at::Tensor& x) { return x.clone(); }),
      {"copy_", [](Inputs& in) { in.out.copy_(in.b); }},
      of("to dtype", [](Inputs&, const at::Tensor& x) { return x.to(at::kDouble); }),
      {"bmm", [](Inputs& in) { in.batch.bmm(in.other_batch); }},
      of("where", [](Inputs& in, const at::Tensor& x) { return at::where(in.mask, x, in.b); }),
      of("linear", [](Inputs& in, const at::Tensor& x) { return at::linear(x, in.b, in.row); }),
      {"_foreach_add_ 4", [](Inputs& in) { at::_foreach_add_(in.list, in.gradients, 1e-6); }},
      {"fused_adamw 4",
       [](Inputs& in) {
         at::_fused_adamw_(in.list, in.gradients, in.first_moments, in.second_moments, {}, in.steps, 1e-6, 0.9, 0.999,
                           0.01, 1e-8, false, false);
       }},
  };
}

Run with_gradient(const Case& one) {
  return [function = one.differentiable](Inputs& in) {
    const auto x = in.a.detach().requires_grad_();
    function(in, x).sum().backward();
  };
}

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("The cost of each operator on DTensors against plain tensors, in one process");
  std::string filter, only;
  int rounds = 5, count = 20000;
  double seconds = 0.02;
  options.text("--filter", filter, "only cases whose name has this in it");
  options.number("--rounds", rounds, "rounds per case; the figure is their median");
  options.number("--seconds", seconds, "time of one measurement in a round");
  options.text("--only", only, "run a number of calls and take no time, for profilers", {"plain", "here", "both"});
  options.number("--count", count, "calls with --only");
  options.parse(argument_count, arguments);
  at::set_num_threads(1);
  return bench::run_main([&] {
    init();
    const auto mesh = init_device_mesh(c10::DeviceType::CPU, {1}, {"tp"});
    Inputs plain([](const at::Tensor& tensor) { return tensor; });
    Inputs here([&](const at::Tensor& tensor) -> at::Tensor {
      return distribute_tensor(tensor, mesh, {tensor.dim() > 0 ? Placement(Shard(0)) : Placement(Replicate())});
    });
    const auto measure = [&](const std::string& name, const Run& run) {
      if (name.find(filter) == std::string::npos) return;
      const auto run_plain = [&] { run(plain); };
      const auto run_here = [&] { run(here); };
      try {
        if (!only.empty()) {
          const std::function<void()> sides[] = {run_plain, run_here};
          for (const auto& side : sides) bench::time_calls(side, 3);
          if (only != "here") bench_profiled_calls(&sides[0], count);
          if (only != "plain") bench_profiled_calls(&sides[1], count);
          std::puts(name.c_str());
          return;
        }
        const auto [plain_ns, here_ns] = bench::compare(run_plain, run_here, rounds, seconds);
        bench::print_line("dispatch", name, {{"plain_ns", plain_ns}, {"here_ns", here_ns}});
      } catch (const c10::Error& error) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what_without_backtrace());
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
      }
    };
    for (const auto& one : cases()) {
      {
        const torch::NoGradGuard no_grad;
        measure(one.name, one.run);
      }
      if (one.differentiable) measure(std::string(one.name) + " grad", with_gradient(one));
    }
    shutdown();
  });
}
