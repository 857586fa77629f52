// Counts and bytes of collectives, per group and reason; policy of a World.
#include "comm/counters.h"
#include "comm/device_mesh.h"
#include "comm/policy.h"
#include "comm/run_ranks.h"
#include "comm/world.h"

#include <ATen/ops/zeros.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;

namespace {

struct Report {
  CollectiveTallies tallies;
  std::string text;
  std::int64_t total = 0, bytes = 0, implicit_gathers = 0;
};

}  // namespace

TEST_CASE("counters: bytes received per rank, whatever the algorithm") {
  std::vector<Report> reports(2);
  run_ranks(2, [&](int rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Group& group = mesh.group("tp");
    CollectiveCounter counter;
    auto tensor = at::zeros({6});
    auto piece = at::zeros({rank == 0 ? 4 : 2});
    std::vector<at::Tensor> pieces = {at::zeros({4}), at::zeros({2})};
    std::vector<at::Tensor> same = {at::zeros(piece.sizes()), at::zeros(piece.sizes())};
    group.all_reduce(tensor).wait();
    {
      const CollectiveReason reason("implicit move");
      group.all_gather(pieces, piece).wait();
    }
    group.reduce_scatter(piece, pieces).wait();
    group.all_to_all(same, pieces).wait();
    group.broadcast(tensor, 0).wait();
    group.scatter(piece, pieces, 0).wait();
    if (rank == 0) group.send(tensor, 1).wait();
    if (rank == 1) group.recv(tensor, 0).wait();
    group.barrier();
    auto& report = reports[static_cast<std::size_t>(rank)];
    report = {counter.tallies(), counter.to_string(), counter.total(), counter.bytes("tp"),
              counter.count(Collective::all_gather, "tp", "implicit move")};
    counter.reset();
    if (counter.total() != 0) report.text = "reset does not work";
  });
  const auto bytes = [&](int rank, Collective collective, const char* reason = "") {
    const auto& tallies = reports[static_cast<std::size_t>(rank)].tallies;
    const auto found = tallies.find({"tp", collective, reason});
    return found == tallies.end() ? -1 : found->second.bytes;
  };
  for (int rank = 0; rank < 2; ++rank) {
    CAPTURE(rank);
    const int other_piece = rank == 0 ? 2 * 4 : 4 * 4;
    CHECK(bytes(rank, Collective::all_reduce) == 24);
    CHECK(bytes(rank, Collective::all_gather, "implicit move") == other_piece);
    CHECK(bytes(rank, Collective::reduce_scatter) == other_piece);
    CHECK(bytes(rank, Collective::all_to_all) == other_piece);
    CHECK(bytes(rank, Collective::broadcast) == (rank == 0 ? 0 : 24));
    CHECK(bytes(rank, Collective::scatter) == (rank == 0 ? 0 : 8));
    CHECK(bytes(rank, Collective::send) == (rank == 0 ? 0 : -1));
    CHECK(bytes(rank, Collective::recv) == (rank == 0 ? -1 : 24));
    CHECK(bytes(rank, Collective::barrier) == 0);
    const auto& report = reports[static_cast<std::size_t>(rank)];
    CHECK(report.total == 8);
    CHECK(report.implicit_gathers == 1);
    CHECK(report.text.find("tp all_reduce 1 (24 B), tp all_gather 1") == 0);
  }
}

TEST_CASE("counters: a group of one copies and counts nothing") {
  std::int64_t total = -1;
  double sum = 0;
  run_ranks(2, [&](int rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 1}, {"dp", "tp"});
    CollectiveCounter counter;
    auto input = at::zeros({3}).add(rank + 1);
    std::vector<at::Tensor> outputs = {at::zeros({3})};
    auto work = mesh.group("tp").all_gather(outputs, input);
    work.wait();
    mesh.group("tp").all_reduce(input, ReduceOp::avg).wait();
    mesh.group("tp").barrier();
    if (rank == 1) {
      total = counter.total();
      sum = outputs[0].sum().item<double>();
    }
  });
  CHECK(total == 0);
  CHECK(sum == 6);
}

TEST_CASE("counters and policy belong to the World: a nested run has its own") {
  std::vector<std::int64_t> outer(2), inner(2);
  std::vector<Policy> outer_policy(2), inner_policy(2);
  run_ranks(2, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const PolicyGuard strict(Policy::strict());
    CollectiveCounter counter;
    auto tensor = at::zeros({1});
    World::current().group().all_reduce(tensor).wait();
    run_ranks(2, [&](int inner_rank) {
      CollectiveCounter inner_counter;
      auto small = at::zeros({1});
      for (int i = 0; i < 3; ++i) World::current().group().all_reduce(small).wait();
      if (inner_rank == rank) inner[index] = inner_counter.total();
      if (inner_rank == rank) inner_policy[index] = World::current().policy();
    });
    outer[index] = counter.total();
    outer_policy[index] = World::current().policy();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(outer[rank] == 1);
    CHECK(inner[rank] == 3);
    CHECK(outer_policy[rank] == Policy::strict());
    CHECK(inner_policy[rank] == Policy{});
  }
}

TEST_CASE("policy: a guard restores the former one") {
  bool restored = false;
  run_ranks(1, [&](int) {
    World& world = World::current();
    {
      const PolicyGuard guard(world, Policy::strict());
      if (world.policy() != Policy::strict()) return;
    }
    restored = world.policy() == Policy{};
  });
  CHECK(restored);
}
