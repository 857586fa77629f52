// init() and shutdown() without peers. With peers: collectives_process_test.cpp.
#include "comm/device_mesh.h"
#include "comm/run_ranks.h"
#include "comm/world.h"
#include "placements/error.h"

#include <ATen/ops/full.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace dtensor;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

template <typename Error>
std::string refusal(const InitOptions& options) {
  try {
    init(options);
  } catch (const Error& error) {
    return error.what();
  }
  shutdown();
  return "no error of that type";
}

}  // namespace

TEST_CASE("init: without a launcher a world of one; twice the same; shutdown may be repeated") {
  World& world = init();
  CHECK(&world == &init());
  CHECK(&world == &World::current());
  CHECK(world.rank() == 0);
  CHECK(world.size() == 1);
  CHECK(world.source() == "single");
  CHECK(world.timeout() == 100s);
  auto tensor = at::full({2}, 3.0);
  const auto mesh = init_device_mesh(at::kCPU, {1, -1}, {"dp", "tp"});
  CollectiveCounter counter;
  mesh.whole_group().all_reduce(tensor, ReduceOp::avg).wait();
  CHECK(tensor.sum().item<double>() == 6);
  CHECK(counter.total() == 0);
  CHECK(std::string(mesh.group("tp").backend_name()) == "local");
  CHECK_THROWS_AS(mesh.group("tp").send(tensor, 0), CommError);
  shutdown();
  shutdown();
  CHECK(World::current_or_null() == nullptr);
  init();
  shutdown();
}

TEST_CASE("init: on a rank thread it gives that rank's World, and shutdown leaves it alone") {
  std::vector<int> ranks(3, -1);
  run_ranks(3, [&](int rank) {
    World& world = init();
    shutdown();
    auto tensor = at::full({1}, 1.0);
    world.group().all_reduce(tensor).wait();
    if (tensor.item<double>() == 3) ranks[static_cast<std::size_t>(rank)] = world.rank();
  });
  CHECK(ranks == std::vector<int>{0, 1, 2});
}

TEST_CASE("init: options that do not fit are refused") {
  CHECK_THAT(refusal<MeshError>({.backend = "mpi"}), ContainsSubstring("unknown backend 'mpi'"));
  CHECK_THAT(refusal<MeshError>({.rank = 0}), ContainsSubstring("world_size is not set"));
  CHECK_THAT(refusal<MeshError>({.world_size = 2}), ContainsSubstring("rank is not set"));
  CHECK_THAT(refusal<MeshError>({.local_rank = 0}), ContainsSubstring("local_rank is set, but"));
  CHECK_THAT(refusal<MeshError>({.rank = 2, .world_size = 2}),
             ContainsSubstring("rank 2 is not in a world of 2"));
  CHECK_THAT(refusal<MeshError>({.rank = 0, .world_size = 2}),
             ContainsSubstring("master_address and master_port"));
}

TEST_CASE("init: a store that is not there is a CommError after the start-up time-out") {
  const auto text = refusal<CommError>({.startup_timeout = 500ms,
                                        .rank = 1,
                                        .world_size = 2,
                                        .master_address = "127.0.0.1",
                                        .master_port = 9});
  CHECK_THAT(text, ContainsSubstring("rank 1 of 2 cannot reach the store of rank 0 at 127.0.0.1:9"));
}
