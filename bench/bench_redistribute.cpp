// Redistributions against the bare collectives that they are made of: what the software above the backend costs.
//
//   dtensor-run -n 4 -- bench_redistribute [--filter "Shard(0) -> Replicate"] [--rounds 7]
//
// One JSON line per case: {"bench", "case", "ranks", "steps", "here_us", "bare_us", "software_us_per_step"}. A figure is the
// median over rounds of the time of one call, from when all ranks begin until all are through; both take turns in each round.
// bare_us: the same collectives on local tensors of the same sizes that are there already, so that `here` also makes its
// result and copies what a collective cannot take or leave in place. "backward" adds a graph and its backward, on both sides:
// for bare_us that of a plain tensor's alias.
#include "command_line.h"
#include "measure_ranks.h"

#include <dtensor/all.h>
#include <placements/redistribution.h>
#include <placements/shard_math.h>
#include <torch/torch.h>

using namespace dtensor;

namespace {

struct Case {
  const char* name;
  std::vector<std::int64_t> mesh;  // -1: all ranks there are
  Placements from, to;
  std::vector<std::int64_t> sizes;
};

// The collectives of a plan on tensors made beforehand.
class Bare {
 public:
  Bare(const DeviceMesh& mesh, const Layout* from, const Layout* to, const std::vector<std::int64_t>& sizes) {
    const auto plan = plan_redistribution(from, to, sizes, sizeof(float));
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const auto& step = plan.steps[i];
      if (!communicates(step)) continue;
      ++steps_;
      // All-reduces that follow each other are one, as in move_local.
      std::vector<int> mesh_dims = {step.mesh_dim};
      while (step.kind == StepKind::all_reduce && i + 1 < plan.steps.size() && plan.steps[i + 1].kind == StepKind::all_reduce)
        mesh_dims.insert(mesh_dims.begin(), plan.steps[++i].mesh_dim);
      add(mesh, step, mesh.state()->group(mesh_dims), sizes);
    }
  }

  int steps() const { return steps_; }
  void run() const {
    for (const auto& call : calls_) call();
  }

 private:
  void add(const DeviceMesh& mesh, const RedistributionStep& step, Group& group, const std::vector<std::int64_t>& sizes) {
    const auto local = [&](const Layout& layout) { return at::zeros(shard_math::local_sizes(layout, sizes, mesh.coordinate())); };
    // A tensor's pieces for the ranks of the group, along a dimension that one of the layouts cuts.
    const auto pieces = [&](const at::Tensor& whole, const Placement& cut) {
      std::vector<at::Tensor> result;
      for (int rank = 0; rank < group.size(); ++rank) {
        const auto piece = shard_math::piece(whole.size(cut.dim()), group.size(), rank);
        result.push_back(whole.narrow(cut.dim(), std::min(piece.offset, whole.size(cut.dim())), piece.size).contiguous());
      }
      return result;
    };
    const auto before = local(*step.before), after = local(*step.after);
    const auto &from = step.before->placement(step.mesh_dim), &to = step.after->placement(step.mesh_dim);
    switch (step.kind) {
      case StepKind::all_reduce:
        return calls_.push_back([&group, value = before.clone()]() mutable { group.all_reduce(value).wait(); });
      case StepKind::all_gather:
        return calls_.push_back([&group, value = before, outputs = pieces(after, from)]() mutable {
          group.all_gather(outputs, value).wait();
        });
      case StepKind::reduce_scatter:
        return calls_.push_back([&group, inputs = pieces(before, to), output = after]() mutable {
          group.reduce_scatter(output, inputs).wait();
        });
      case StepKind::all_to_all:
        return calls_.push_back([&group, inputs = pieces(before, to), outputs = pieces(after, from)]() mutable {
          group.all_to_all(outputs, inputs).wait();
        });
      default: return;
    }
  }

  mutable std::vector<std::function<void()>> calls_;
  int steps_ = 0;
};

void run_case(const Case& one, const DeviceMesh& mesh, bool backward, int rounds, double seconds) {
  const auto full = torch::randn(one.sizes);
  at::Tensor x = distribute_tensor(full, mesh, one.from);
  const Layout *from = &DTensor(x).layout(), *to = &DTensor(x).redistribute(one.to).layout();
  const Bare there(mesh, from, to, one.sizes);
  const Bare back(mesh, to, from->without_partial(), one.sizes);
  const at::Tensor gradient = distribute_tensor(full, mesh, to->without_partial()->placements());
  if (backward) x.requires_grad_();
  const auto here = [&] {
    const at::Tensor result = DTensor(x).redistribute(one.to);
    if (!backward) return;
    result.backward(gradient);
    x.mutable_grad() = at::Tensor();
  };
  auto plain = torch::zeros({1}).requires_grad_();
  const auto bare = [&] {
    there.run();
    if (!backward) return;
    at::alias(plain).backward(torch::ones({1}));
    plain.mutable_grad() = at::Tensor();
    back.run();
  };
  Group& group = mesh.world().group();
  const auto meet = [&] { group.barrier(); };
  const int here_count = bench::choose_count_together(group, here, seconds), bare_count = bench::choose_count_together(group, bare, seconds);
  std::vector<double> here_us, bare_us;
  for (int round = 0; round < rounds; ++round) {
    here_us.push_back(bench::time_together(here, here_count, meet));
    bare_us.push_back(bench::time_together(bare, bare_count, meet));
  }
  if (group.rank() != 0) return;
  const int steps = there.steps() + (backward ? back.steps() : 0);
  const double here_median = bench::median(here_us), bare_median = bench::median(bare_us);
  bench::print_line("redistribute", std::string(one.name) + (backward ? " backward" : ""),
                    {{"ranks", group.size()},
                     {"steps", steps},
                     {"here_us", here_median},
                     {"bare_us", bare_median},
                     {"software_us_per_step", (here_median - bare_median) / std::max(steps, 1)}});
}

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("Redistributions against their bare collectives; start it with dtensor-run");
  std::string filter;
  int rounds = 7;
  double seconds = 0.05;
  options.text("--filter", filter, "only cases whose name has this in it");
  options.number("--rounds", rounds, "rounds per case; the figure is their median");
  options.number("--seconds", seconds, "time of one measurement in a round");
  options.parse(argument_count, arguments);
  at::set_num_threads(1);
  return bench::run_main([&] {
    World& world = init();
    if (world.size() < 2) throw MeshError("bench_redistribute needs two or more ranks: dtensor-run -n 4 -- bench_redistribute");
    const std::vector<std::int64_t> small = {64, 64}, uneven = {65, 63}, large = {1024, 1024};
    std::vector<Case> cases = {
        {"Shard(0) -> Replicate", {-1}, {Shard(0)}, {Replicate()}, small},
        {"Shard(1) -> Replicate", {-1}, {Shard(1)}, {Replicate()}, small},
        {"Partial -> Replicate", {-1}, {Partial()}, {Replicate()}, small},
        {"Partial -> Shard(0)", {-1}, {Partial()}, {Shard(0)}, small},
        {"Shard(0) -> Shard(1)", {-1}, {Shard(0)}, {Shard(1)}, small},
        {"Replicate -> Shard(0)", {-1}, {Replicate()}, {Shard(0)}, small},
        {"Replicate -> Partial", {-1}, {Replicate()}, {Partial()}, small},
        {"uneven Shard(0) -> Replicate", {-1}, {Shard(0)}, {Replicate()}, uneven},
        {"uneven Shard(0) -> Shard(1)", {-1}, {Shard(0)}, {Shard(1)}, uneven},
        {"large Shard(0) -> Replicate", {-1}, {Shard(0)}, {Replicate()}, large},
        {"large Partial -> Replicate", {-1}, {Partial()}, {Replicate()}, large}};
    if (world.size() % 2 == 0 && world.size() > 2)
      for (const Case& one : {Case{"2-D Shard(0), Shard(1) -> Replicate", {2, -1}, {Shard(0), Shard(1)}, {Replicate(), Replicate()}, small},
                              Case{"2-D Partial, Partial -> Replicate", {2, -1}, {Partial(), Partial()}, {Replicate(), Replicate()}, small},
                              Case{"2-D Partial, Shard(0) -> Shard(0), Replicate", {2, -1}, {Partial(), Shard(0)}, {Shard(0), Replicate()}, small}})
        cases.push_back(one);
    for (const Case& one : cases) {
      if (std::string(one.name).find(filter) == std::string::npos) continue;
      const std::vector<std::string> names = {"a", "b"};
      const auto mesh = init_device_mesh(c10::DeviceType::CPU, one.mesh, {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(one.mesh.size())});
      for (const bool backward : {false, true}) run_case(one, mesh, backward, rounds, seconds);
    }
    world.group().barrier();
    shutdown();
  });
}
