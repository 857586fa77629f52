// What one operator on small tensors costs: plain LibTorch and a DTensor, which need no communication, in one run.
//
//   bench_dispatch [--filter softmax] [--rounds 5] [--seconds 0.03]
//
// One JSON line per case: {"bench", "case", "plain_ns", "here_ns"}, the medians over rounds in which the two take turns.
// Local tensors are 8 x 8, float32, rows cut over four ranks; only rank 0 works, the others have nothing to do. "grad" is
// the forward pass of a recorded graph, "backward" both passes. bench/peer_dispatch.py has the same cases for PyTorch.
#include <dtensor/all.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

using namespace dtensor;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::int64_t rows = 8, columns = 8;

// a and b have rows cut, w and v (a vector) are whole; three [2, rows, columns] with rows cut, for batches.
struct Inputs {
  at::Tensor a, b, w, v, batch, index, target, flags;
  std::vector<at::Tensor> many;
};

Inputs plain_inputs() {
  Inputs in;
  in.a = at::randn({rows, columns});
  in.b = at::randn({rows, columns});
  in.w = at::randn({columns, columns});
  in.v = at::randn({columns});
  in.batch = at::randn({rows, 4, columns});
  in.index = at::randint(0, columns, {rows}, at::kLong);
  in.flags = at::rand({rows, columns}).gt(0.5);
  for (int i = 0; i < 10; ++i) in.many.push_back(at::randn({rows, columns}));
  return in;
}

Inputs placed_inputs(const Inputs& plain, const DeviceMesh& mesh) {
  const auto cut = [&](const at::Tensor& tensor) {
    auto sizes = tensor.sizes().vec();
    sizes[0] *= mesh.size(0);
    return at::Tensor(from_local(tensor.clone(), mesh, {Shard(0)}, {.global_sizes = sizes}));
  };
  const auto whole = [&](const at::Tensor& tensor) {
    return at::Tensor(from_local(tensor.clone(), mesh, {Replicate()}, {.global_sizes = tensor.sizes().vec()}));
  };
  Inputs in;
  in.a = cut(plain.a);
  in.b = cut(plain.b);
  in.w = whole(plain.w);
  in.v = whole(plain.v);
  in.batch = cut(plain.batch);
  in.index = cut(plain.index);
  in.flags = cut(plain.flags);
  for (const auto& tensor : plain.many) in.many.push_back(cut(tensor));
  return in;
}

struct Case {
  const char* name;
  std::function<at::Tensor(Inputs&)> run;
  bool differentiable = true;
};

std::vector<Case> cases() {
  return {
      {"detach", [](Inputs& i) { return i.a.detach(); }, false},
      {"add", [](Inputs& i) { return i.a + i.b; }},
      {"add_number", [](Inputs& i) { return i.a + 1.5; }},
      {"add_", [](Inputs& i) { return i.a.add_(i.b); }, false},
      {"mul_number_", [](Inputs& i) { return i.a.mul_(1.0); }, false},
      {"add_out", [](Inputs& i) { return at::add_out(i.b, i.a, i.a); }, false},
      {"where", [](Inputs& i) { return at::where(i.flags, i.a, i.b); }},
      {"relu", [](Inputs& i) { return at::relu(i.a); }},
      {"gelu", [](Inputs& i) { return at::gelu(i.a); }},
      {"pow", [](Inputs& i) { return i.a.pow(2); }},
      {"to_bfloat16", [](Inputs& i) { return i.a.to(at::kBFloat16); }},
      {"clone", [](Inputs& i) { return i.a.clone(); }},
      {"copy_", [](Inputs& i) { return i.a.copy_(i.b); }, false},
      {"zeros_like", [](Inputs& i) { return at::zeros_like(i.a); }, false},
      {"mm", [](Inputs& i) { return at::mm(i.a, i.w); }},
      {"linear", [](Inputs& i) { return at::linear(i.batch, i.w, i.v); }},
      {"bmm", [](Inputs& i) { return at::bmm(i.batch, i.batch.transpose(1, 2)); }},
      {"transpose", [](Inputs& i) { return i.a.transpose(0, 1); }},
      {"view", [](Inputs& i) { return i.batch.view({-1, 4 * columns}); }},
      {"reshape", [](Inputs& i) { return i.batch.reshape({-1, 2, 2, columns}); }},
      {"slice", [](Inputs& i) { return i.a.slice(1, 2, 6); }},
      {"select", [](Inputs& i) { return i.a.select(1, 3); }},
      {"expand", [](Inputs& i) { return i.a.unsqueeze(1).expand({-1, 4, -1}); }},
      {"cat", [](Inputs& i) { return at::cat({i.a, i.b}, 1); }},
      {"stack", [](Inputs& i) { return at::stack({i.a, i.b}, 1); }},
      {"split", [](Inputs& i) { return i.a.split(4, 1)[1]; }},
      {"sum", [](Inputs& i) { return i.a.sum(1); }},
      {"mean", [](Inputs& i) { return i.a.mean(1); }},
      {"softmax", [](Inputs& i) { return at::softmax(i.a, -1); }},
      {"layer_norm", [](Inputs& i) { return at::layer_norm(i.a, {columns}, i.v, i.v); }},
      {"embedding", [](Inputs& i) { return at::embedding(i.w, i.index); }},
      {"dropout", [](Inputs& i) { return at::dropout(i.a, 0.5, true); }},
      {"uniform_", [](Inputs& i) { return i.a.uniform_(); }, false},
      {"foreach_add_10", [](Inputs& i) { return at::_foreach_add_(i.many, 1.0), at::Tensor(); }, false},
  };
}

double time_calls(const std::function<void()>& run, int count) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) run();
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / count;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Options {
  std::string filter;
  int rounds = 5;
  double seconds = 0.03;
};

void measure(const std::string& name, const std::function<void()>& plain, const std::function<void()>& here,
             const Options& options) {
  if (name.find(options.filter) == std::string::npos) return;
  const auto count_of = [&](const std::function<void()>& run) {
    time_calls(run, 50);
    return std::max(10, static_cast<int>(options.seconds * 1e9 / time_calls(run, 50)));
  };
  const int plain_count = count_of(plain), here_count = count_of(here);
  std::vector<double> plain_ns, here_ns;
  for (int round = 0; round < options.rounds; ++round) {
    plain_ns.push_back(time_calls(plain, plain_count));
    here_ns.push_back(time_calls(here, here_count));
  }
  std::printf("{\"bench\": \"dispatch\", \"case\": \"%s\", \"plain_ns\": %.0f, \"here_ns\": %.0f}\n", name.c_str(),
              median(plain_ns), median(here_ns));
  std::fflush(stdout);
}

// Ten times mm and relu on 64 x 64, forward and backward.
std::function<void()> chain(const at::Tensor& x, const at::Tensor& w) {
  return [x, w] {
    auto y = x;
    for (int i = 0; i < 10; ++i) y = at::relu(at::mm(y, w));
    torch::autograd::grad({y}, {x, w}, {at::ones_like(y)});
  };
}

void run_all(const DeviceMesh& mesh, const Options& options) {
  auto plain = plain_inputs();
  auto placed = placed_inputs(plain, mesh);
  for (const auto& one : cases()) {
    const at::NoGradGuard no_grad;
    measure(one.name, [&] { one.run(plain); }, [&] { one.run(placed); }, options);
  }
  auto plain_leaves = plain_inputs(), leaves = placed_inputs(plain_leaves, mesh);
  for (auto* in : {&plain_leaves, &leaves})
    for (auto* tensor : {&in->a, &in->b, &in->w, &in->v, &in->batch}) tensor->set_requires_grad(true);
  for (const auto& one : cases())
    if (one.differentiable)
      measure(std::string(one.name) + " grad", [&] { one.run(plain_leaves); }, [&] { one.run(leaves); }, options);
  const auto x = at::randn({64, 64}).set_requires_grad(true), w = at::randn({64, 64}).div(8).set_requires_grad(true);
  const auto share = [&](const at::Tensor& tensor) {
    at::Tensor result = from_local(tensor.detach().clone(), mesh, {Replicate()}, {.global_sizes = tensor.sizes().vec()});
    return result.set_requires_grad(true);
  };
  measure("10 x (mm, relu) backward", chain(x, w), chain(share(x), share(w)), options);
}

}  // namespace

int main(int argument_count, char** arguments) {
  CLI::App app("What an operator costs on a DTensor and on a plain tensor");
  Options options;
  app.add_option("--filter", options.filter, "only cases whose name has this in it");
  app.add_option("--rounds", options.rounds, "rounds per case; the figure is their median")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "time of one measurement in a round")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argument_count, arguments);
  at::set_num_threads(1);
  run_ranks(4, [&](int rank) {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    if (rank == 0) run_all(mesh, options);
  });
  return 0;
}
