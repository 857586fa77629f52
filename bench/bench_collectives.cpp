// Collectives among the processes of one host: the backend that this library chooses, Gloo, and a plain copy.
//
//   dtensor-run -n 4 -- bench_collectives [--filter all_reduce] [--rounds 7]
//
// One JSON line per case: {"bench", "case", "ranks", "bytes", "here", "here_us", "gloo_us", "copy_us"}. A figure is the
// median over rounds of the time of one call, from when all ranks begin until all are through; the three take turns in
// each round, so that a busy machine hurts them alike. copy_us: all ranks copy the buffer once, each its own.
#include "command_line.h"
#include "measure_ranks.h"

#include "comm/backend.h"
#include "comm/group.h"
#include "comm/process_world.h"
#include "comm/world.h"
#include "placements/error.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>

using namespace dtensor;

namespace {

struct Case {
  std::string name;
  std::int64_t bytes;  // that go into the collective on each rank
};

// One call of the collective on this group; `buffer` has the case's size.
void call(Group& group, const std::string& name, at::Tensor& buffer, at::Tensor& second) {
  const auto ranks = static_cast<std::int64_t>(group.size());
  const auto pieces_of = [&](const at::Tensor& tensor) {
    std::vector<at::Tensor> pieces;
    const auto width = tensor.numel() / ranks;
    for (std::int64_t i = 0; i < ranks; ++i) pieces.push_back(tensor.narrow(0, i * width, width));
    return pieces;
  };
  if (name == "all_reduce") {
    group.all_reduce(buffer).wait();
  } else if (name == "all_gather") {  // the buffer is what all ranks' pieces make
    auto outputs = pieces_of(buffer);
    group.all_gather(outputs, outputs[static_cast<std::size_t>(group.rank())]).wait();
  } else if (name == "reduce_scatter") {
    auto output = second.narrow(0, 0, buffer.numel() / ranks);
    group.reduce_scatter(output, pieces_of(buffer)).wait();
  } else if (name == "all_to_all") {
    auto outputs = pieces_of(second);
    group.all_to_all(outputs, pieces_of(buffer)).wait();
  } else if (name == "broadcast") {
    group.broadcast(buffer, 0).wait();
  } else if (name == "barrier") {
    group.barrier();
  } else if (name == "send_recv") {  // there and back between ranks 0 and 1
    if (group.rank() == 0) {
      group.send(buffer, 1).wait();
      group.recv(second, 1).wait();
    } else if (group.rank() == 1) {
      group.recv(second, 0).wait();
      group.send(buffer, 0).wait();
    }
  }
}

// Gloo among the same ranks, whatever backend the world has chosen.
c10::intrusive_ptr<Group> gloo_group(World& world) {
  auto& processes = dynamic_cast<dtensor::detail::ProcessWorld&>(world.state());
  dtensor::detail::GroupIdentity identity{world.group().ranks(), world.rank(), "gloo", c10::DeviceType::CPU};
  return c10::make_intrusive<Group>(world, identity, dtensor::detail::make_gloo_backend(processes.shared_from_this(), identity));
}

void run_case(Group& here, Group* gloo, const Case& one, int rounds, double seconds) {
  const auto meet = [&] { here.barrier(); };
  auto buffer = at::full({std::max<std::int64_t>(one.bytes / 4, 1)}, 0.0, at::TensorOptions(at::kFloat));
  auto second = buffer.clone();
  const auto run_here = [&] { call(here, one.name, buffer, second); };
  const auto run_gloo = [&] { call(*gloo, one.name, buffer, second); };
  const auto copy = [&] {
    std::memcpy(second.mutable_data_ptr(), buffer.const_data_ptr(), static_cast<std::size_t>(one.bytes));
  };
  const auto warm = [&](const std::function<void()>& run) { return bench::choose_count_together(here, run, seconds); };
  const int here_count = warm(run_here), copy_count = warm(copy), gloo_count = gloo ? warm(run_gloo) : 0;
  std::vector<double> here_us, gloo_us, copy_us;
  for (int round = 0; round < rounds; ++round) {
    here_us.push_back(bench::time_together(run_here, here_count, meet));
    if (gloo) gloo_us.push_back(bench::time_together(run_gloo, gloo_count, meet));
    copy_us.push_back(bench::time_together(copy, copy_count, meet));
  }
  if (here.rank() != 0) return;
  std::printf("{\"bench\": \"collectives\", \"case\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"here\": \"%s\", \"here_us\": %.1f, ",
              one.name.c_str(), here.size(), static_cast<long long>(one.bytes), here.backend_name(), bench::median(here_us));
  if (gloo)
    std::printf("\"gloo_us\": %.1f, ", bench::median(gloo_us));
  else
    std::printf("\"gloo_us\": null, ");
  std::printf("\"copy_us\": %.1f}\n", bench::median(copy_us));
  std::fflush(stdout);
}

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("Collectives among processes of one host; start it with dtensor-run");
  std::string filter;
  int rounds = 7;
  double seconds = 0.1;
  bool without_gloo = false;
  options.text("--filter", filter, "only cases whose name has this in it");
  options.number("--rounds", rounds, "rounds per case; the figure is their median");
  options.number("--seconds", seconds, "time of one measurement in a round");
  options.flag("--no-gloo", without_gloo, "leave Gloo out");
  options.parse(argument_count, arguments);
  return bench::run_main([&] {
    World& world = init();
    if (world.size() < 2) throw MeshError("bench_collectives needs two or more ranks: dtensor-run -n 4 -- bench_collectives");
    Group& here = world.group();
    const auto gloo = without_gloo || !dtensor::detail::has_gloo() ? nullptr : gloo_group(world);
    constexpr std::int64_t kilo = 1024, mega = kilo * kilo;
    const std::vector<Case> cases = {
        {"barrier", 0},
        {"all_reduce", 4},          {"all_reduce", 4 * kilo},   {"all_reduce", 16 * kilo}, {"all_reduce", 64 * kilo},
        {"all_reduce", 256 * kilo}, {"all_reduce", mega},       {"all_reduce", 4 * mega},  {"all_reduce", 32 * mega},
        {"all_gather", 4 * kilo},   {"all_gather", 256 * kilo}, {"all_gather", 32 * mega}, {"reduce_scatter", 4 * kilo},
        {"reduce_scatter", 256 * kilo}, {"reduce_scatter", 32 * mega}, {"all_to_all", 4 * kilo},
        {"all_to_all", 256 * kilo}, {"all_to_all", 32 * mega},  {"broadcast", 4 * kilo},   {"broadcast", 256 * kilo},
        {"broadcast", 32 * mega},   {"send_recv", 4 * kilo},    {"send_recv", 32 * mega}};
    for (const auto& one : cases) {
      const auto name = one.name + " " + std::to_string(one.bytes);
      if (name.find(filter) != std::string::npos) run_case(here, gloo.get(), one, rounds, seconds);
    }
    here.barrier();
    shutdown();
  });
}
