// One rank of the process tests: process_worker SCENARIO [BACKEND]. Says what went wrong on stderr; exit code 0 when all is as
// it should be, 3 for a CommError (its text on stdout), 1 for anything else.
#include "comm/device_mesh.h"
#include "comm/world.h"
#include "placements/error.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>

using namespace dtensor;
using namespace std::chrono_literals;

namespace {

std::string backend = "auto";  // of the command line

InitOptions options_for(std::chrono::milliseconds timeout = 100s) {
  InitOptions options;
  options.backend = backend;
  options.timeout = timeout;
  return options;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("wrong: " + what);
}

at::Tensor value(int rank, int piece, std::int64_t size, at::ScalarType dtype) {
  return at::arange(size, at::TensorOptions(at::kLong)).add(rank + 2 * piece).remainder(3).add(1).to(dtype);
}

at::Tensor reduced(const std::vector<at::Tensor>& parts, ReduceOp op) {
  auto result = parts[0].clone();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (op == ReduceOp::sum || op == ReduceOp::avg) result = result.add(parts[i]);
    if (op == ReduceOp::product) result = result.mul(parts[i]);
    if (op == ReduceOp::max) result = result.maximum(parts[i]);
    if (op == ReduceOp::min) result = result.minimum(parts[i]);
  }
  if (op != ReduceOp::avg) return result;
  const auto count = static_cast<std::int64_t>(parts.size());
  return c10::isIntegralType(result.scalar_type(), true) ? result.div(count, "trunc") : result.div(count);
}

void check_collectives(Group& group, at::ScalarType dtype, const std::vector<std::int64_t>& sizes) {
  const int ranks = group.size(), rank = group.rank();
  const auto options = at::TensorOptions(dtype);
  const auto size = [&](int piece) { return sizes[static_cast<std::size_t>(piece) % sizes.size()]; };
  const auto same = [&](const at::Tensor& got, const at::Tensor& right, const std::string& what) {
    expect(at::equal(got, right), what + " of " + c10::toString(dtype));
  };
  const auto pieces_of = [&](int of_rank) {
    std::vector<at::Tensor> pieces;
    for (int piece = 0; piece < ranks; ++piece) pieces.push_back(value(of_rank, piece, size(piece), dtype));
    return pieces;
  };
  for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::max, ReduceOp::min}) {
    std::vector<at::Tensor> parts, mine;
    for (int other = 0; other < ranks; ++other) {
      parts.push_back(value(other, 0, size(0), dtype));
      mine.push_back(value(other, rank, size(rank), dtype));
    }
    auto tensor = parts[static_cast<std::size_t>(rank)].clone();
    group.all_reduce(tensor, op).wait();
    same(tensor, reduced(parts, op), std::string("all_reduce ") + to_string(op));
    auto output = at::zeros({size(rank)}, options);
    group.reduce_scatter(output, pieces_of(rank), op).wait();
    same(output, reduced(mine, op), std::string("reduce_scatter ") + to_string(op));
  }
  std::vector<at::Tensor> outputs;
  for (int other = 0; other < ranks; ++other) outputs.push_back(at::zeros({size(other)}, options));
  auto gather = group.all_gather(outputs, value(rank, rank, size(rank), dtype));
  while (!gather.is_done()) std::this_thread::yield();
  for (int other = 0; other < ranks; ++other) {
    same(outputs[static_cast<std::size_t>(other)], value(other, other, size(other), dtype), "all_gather");
  }
  for (auto& output : outputs) output = at::zeros({size(rank)}, options);
  group.all_to_all(outputs, pieces_of(rank)).wait();
  for (int other = 0; other < ranks; ++other) {
    same(outputs[static_cast<std::size_t>(other)], value(other, rank, size(rank), dtype), "all_to_all");
  }
  for (int source = 0; source < ranks; ++source) {
    auto tensor = value(rank, 0, size(0), dtype);
    group.broadcast(tensor, source).wait();
    same(tensor, value(source, 0, size(0), dtype), "broadcast");
    auto output = at::zeros({size(rank)}, options);
    group.scatter(output, rank == source ? pieces_of(source) : std::vector<at::Tensor>{}, source).wait();
    same(output, value(source, rank, size(rank), dtype), "scatter");
  }
  const int left = (rank + ranks - 1) % ranks;
  auto sent = group.send(value(rank, 0, size(rank), dtype), (rank + 1) % ranks, 7);
  auto tensor = at::zeros({size(left)}, options);
  group.recv(tensor, left, 7).wait();
  sent.wait();
  same(tensor, value(left, 0, size(left), dtype), "send and recv");
  group.barrier();
}

void collectives() {
  World& world = init(options_for());
  expect(&world == &init(), "init() twice gives the same World");
  expect(world.source() == "torchrun", "the source is " + world.source());
  Group& group = world.group();
  expect(std::string(group.backend_name()) == (backend == "auto" ? "shared_memory" : backend), "the backend is " + std::string(group.backend_name()));
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{4}, std::vector<std::int64_t>{3, 0, 2, 5},
          std::vector<std::int64_t>{0}}) {
      check_collectives(group, dtype, sizes);
    }
  }
  auto flag = at::full({2}, world.rank() == 1, at::TensorOptions(at::kBool));
  group.all_reduce(flag).wait();
  expect(flag.all().item<bool>(), "bool: any");
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(at::full({1000}, 1.0 * (world.rank() + i)));
    works.push_back(group.all_reduce(tensors.back()));
  }
  for (int i = 19; i >= 0; --i) {
    works[static_cast<std::size_t>(i)].wait();
    const double right = world.size() * (world.size() - 1) / 2.0 + i * world.size();
    expect(tensors[static_cast<std::size_t>(i)][0].item<double>() == right, "many at once");
  }
  auto background = group.duplicate("checkpoint");
  std::thread([&] { check_collectives(*background, at::kFloat, {3, 1}); }).join();
}

// Meshes made by members only and in different orders (K68); a group of one is local.
void meshes() {
  World& world = init(options_for());
  const int rank = world.rank();
  const auto sum = [&](Group& group) {
    auto tensor = at::full({1}, 1.0 * rank);
    group.all_reduce(tensor).wait();
    return tensor.item<double>();
  };
  const auto pair = device_mesh(at::kCPU, {2}, {"tp"},
                                rank < 2 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{2, 3});
  expect(sum(pair.group("tp")) == (rank < 2 ? 1 : 5), "the sum over a mesh of two");
  const auto make_even = [] { return device_mesh(at::kCPU, {2}, {"pair"}, {0, 2}); };
  const auto make_all = [] { return init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"}); };
  auto even = rank == 0 ? make_even() : make_all();
  auto all = rank == 0 ? make_all() : make_even();
  if (rank != 0) std::swap(even, all);
  if (rank == 0) even.group("pair");
  expect(sum(all.group("dp")) == (rank % 2 == 0 ? 2 : 4), "the sum over dp");
  if (even.is_member()) expect(sum(even.group("pair")) == 2, "the sum over ranks 0 and 2");
  const auto single = device_mesh(at::kCPU, {1}, {"alone"}, {rank});
  expect(sum(single.group("alone")) == rank, "the sum over one rank");
}

// All-reduces until something happens; the rank `victim` does it at its fifth.
void until(const std::function<void(int rank)>& event, std::chrono::milliseconds timeout = 100s) {
  World& world = init(options_for(timeout));
  const auto mesh = init_device_mesh(at::kCPU, {world.size()}, {"dp"});
  for (int step = 0; step < 1000; ++step) {
    if (step == 5) event(world.rank());
    auto tensor = at::full({64}, 1.0);
    mesh.group("dp").all_reduce(tensor).wait();
  }
  throw std::runtime_error("nothing ended the loop");
}

void killed() {
  until([](int rank) {
    if (rank == 2) ::kill(::getpid(), SIGKILL);
  });
}

void store_killed() {
  until([](int rank) {
    if (rank == 0) ::kill(::getpid(), SIGKILL);
  });
}

void stopped() {
  until(
      [](int rank) {
        if (rank == 1) ::kill(::getpid(), SIGSTOP);
      },
      4s);
}

void store_stopped() {
  until(
      [](int rank) {
        if (rank == 0) ::kill(::getpid(), SIGSTOP);
      },
      3s);
}

void left() {
  until([](int rank) {
    if (rank == 1) std::exit(0);
  });
}

void late() {
  until(
      [](int rank) {
        if (rank == 1) std::this_thread::sleep_for(6s);
      },
      2s);
}

void aborted() {
  until([](int rank) {
    if (rank != 1) return;
    World::current().abort("out of memory in step 5");
    std::this_thread::sleep_for(3s);  // the note works, not the end of the process
    std::exit(0);
  });
}

void uncaught() {
  until([](int rank) {
    if (rank == 1) std::thread([] { throw std::runtime_error("no such file"); }).join();
  });
}

// A rank dies; those who wait for others than the dead one end, too.
void killed_elsewhere() {
  World& world = init(options_for());
  const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  for (int step = 0; step < 1000; ++step) {
    for (const char* dim : {"tp", "dp"}) {
      if (step == 3 && world.rank() == 3) ::kill(::getpid(), SIGKILL);
      auto tensor = at::full({64}, 1.0);
      mesh.group(dim).all_reduce(tensor).wait();
    }
  }
}

void receives_from_the_dead() {
  World& world = init(options_for());
  auto tensor = at::zeros({4});
  world.group().all_reduce(tensor).wait();
  if (world.rank() == 1) ::kill(::getpid(), SIGKILL);
  if (world.rank() == 0) world.group().recv(tensor, 1).wait();
}

// Rank 1 comes when its peers have waited for about as long as Gloo's waits are cut to (a tenth of a second), a little more
// or less each time.
void late_by_a_slice() {
  Group& group = init(options_for()).group();
  for (int round = 0; round < 60; ++round) {
    auto tensor = at::full({64}, 1.0);
    group.barrier();
    if (group.rank() == 1) std::this_thread::sleep_for(99500us + round * 20us);
    group.all_reduce(tensor).wait();
    expect(at::equal(tensor, at::full({64}, static_cast<double>(group.size()))), "all_reduce of late ranks");
  }
}

void missing_at_start() {
  InitOptions options = options_for();
  options.startup_timeout = 2s;
  if (std::string(std::getenv("RANK")) == "2") std::this_thread::sleep_for(4s);
  init(options);
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::map<std::string, void (*)()> scenarios = {{"collectives", collectives},
                                                       {"meshes", meshes},
                                                       {"killed", killed},
                                                       {"store_killed", store_killed},
                                                       {"stopped", stopped},
                                                       {"store_stopped", store_stopped},
                                                       {"left", left},
                                                       {"late", late},
                                                       {"aborted", aborted},
                                                       {"uncaught", uncaught},
                                                       {"killed_elsewhere", killed_elsewhere},
                                                       {"receives_from_the_dead", receives_from_the_dead},
                                                       {"late_by_a_slice", late_by_a_slice},
                                                       {"missing_at_start", missing_at_start}};
  if (argument_count > 2) backend = arguments[2];
  try {
    scenarios.at(argument_count > 1 ? arguments[1] : "")();
    shutdown();
    shutdown();
    return 0;
  } catch (const CommError& error) {
    std::cout << "CommError: " << error.what_without_backtrace() << std::endl;
    return 3;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
