// run_ranks: which failure is rethrown, that nobody hangs, and what a rank thread is set to.
#include "comm/run_ranks.h"

#include "comm/device_mesh.h"
#include "comm/world.h"
#include "placements/error.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

using namespace dtensor;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

void all_reduce_once() {
  auto tensor = at::zeros({2});
  World::current().group().all_reduce(tensor).wait();
}

double seconds_of(const std::function<void()>& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Error>
std::string text_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing of that type was thrown";
}

}  // namespace

TEST_CASE("run_ranks: the first failure is rethrown with its type; its peers end with CommError") {
  std::vector<std::string> peers(3);
  const auto run = [&] {
    run_ranks(3, [&](int rank) {
      all_reduce_once();
      if (rank == 1) throw std::out_of_range("index 7");
      try {
        all_reduce_once();
      } catch (const CommError& error) {
        peers[static_cast<std::size_t>(rank)] = error.what();
        throw;
      }
    });
  };
  CHECK_THROWS_AS(run(), std::out_of_range);
  for (const std::size_t rank : {0, 2}) {
    CHECK_THAT(peers[rank], ContainsSubstring("rank 1: index 7") &&
                                ContainsSubstring("all_reduce, sequence 1") &&
                                ContainsSubstring("group 'world'"));
  }
}

TEST_CASE("run_ranks: an error of this library keeps its type and says on which rank") {
  const auto text = text_of<PlacementError>([] {
    run_ranks(2, [](int rank) {
      if (rank == 1) throw PlacementError("no such dimension");
      all_reduce_once();
    });
  });
  CHECK_THAT(text, ContainsSubstring("no such dimension") && ContainsSubstring("on rank 1"));
}

TEST_CASE("run_ranks: who waits for a rank that has returned throws") {
  const auto text = text_of<CommError>([] {
    run_ranks(3, [](int rank) {
      if (rank != 2) all_reduce_once();
    });
  });
  CHECK_THAT(text, ContainsSubstring("rank 2 has already ended"));
  const auto receiver = text_of<CommError>([] {
    run_ranks(2, [](int rank) {
      auto tensor = at::zeros({1});
      if (rank == 0) World::current().group().recv(tensor, 1).wait();
    });
  });
  CHECK_THAT(receiver, ContainsSubstring("recv from rank 1, sequence 0") &&
                           ContainsSubstring("rank 1 has already ended"));
}

TEST_CASE("run_ranks: what a returned rank has sent or given is not lost") {
  run_ranks(2, [](int rank) {
    auto tensor = at::zeros({1});
    Group& group = World::current().group();
    auto work = group.all_reduce(tensor);
    if (rank == 1) return group.send(tensor, 0).wait();
    std::this_thread::sleep_for(20ms);
    work.wait();
    group.recv(tensor, 1).wait();
  });
}

TEST_CASE("run_ranks: a time-out names the missing ranks, the group, the operator and its number") {
  std::string late;
  const auto text = text_of<CommError>([&] {
    run_ranks(3,
              [&](int rank) {
                const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
                auto tensor = at::zeros({1});
                mesh.group("tp").all_reduce(tensor).wait();
                if (rank == 1) std::this_thread::sleep_for(300ms);
                try {
                  mesh.group("tp").broadcast(tensor).wait();
                } catch (const CommError& error) {
                  if (rank == 1) late = error.what();
                  throw;
                }
              },
              {.timeout = 100ms});
  });
  CHECK_THAT(text, ContainsSubstring("timed out after 100 ms") && ContainsSubstring("missing: rank 1") &&
                       ContainsSubstring("group 'tp'") && ContainsSubstring("broadcast, sequence 1"));
  CHECK_THAT(late, ContainsSubstring("timed out"));  // the late one is told, too
}

TEST_CASE("run_ranks: an abort note reaches everybody who waits") {
  std::atomic<int> told = 0;
  run_ranks(4, [&](int rank) {
    if (rank == 3) {
      std::this_thread::sleep_for(20ms);
      World::current().abort("out of memory");
      World::current().abort("a second note does not replace the first");
      return;
    }
    const auto text = text_of<CommError>(all_reduce_once);
    const auto note = World::current().abort_note();
    if (text.find("rank 3: out of memory") != std::string::npos && note == "rank 3: out of memory") ++told;
  });
  CHECK(told == 3);
}

TEST_CASE("run_ranks: a failure on one rank is not covered by the time-out of a peer") {
  const auto run = [] {
    run_ranks(2,
              [](int rank) {
                if (rank == 0) all_reduce_once();
                std::this_thread::sleep_for(100ms);
                throw std::runtime_error("the cause");
              },
              {.timeout = 20ms});
  };
  CHECK_THROWS_AS(run(), std::runtime_error);
  CHECK_THROWS_AS(run_ranks(0, [](int) {}), MeshError);
}

TEST_CASE("run_ranks: a rank thread has one intra-op thread, single-threaded autograd and view replay") {
  const int before = at::get_num_threads();
  std::atomic<int> right = 0;
  run_ranks(2, [&](int rank) {
    const auto& state = c10::AutogradState::get_tls_state();
    World& world = World::current();
    right += at::get_num_threads() == 1 && !state.get_multithreading_enabled() &&
             state.get_view_replay_enabled() && world.rank() == rank && world.size() == 2 &&
             world.source() == "threads";
  });
  CHECK(right == 2);
  CHECK(at::get_num_threads() == before);
  std::atomic<int> later = 0;
  std::thread([&] { later = at::get_num_threads(); }).join();
  CHECK(later == before);
  CHECK(World::current_or_null() == nullptr);
  CHECK_THROWS_AS(World::current(), MeshError);
}

TEST_CASE("run_ranks: a World's slots are its own") {
  struct Number {
    int value = 0;
  };
  std::atomic<int> sum = 0;
  run_ranks(3, [&](int rank) {
    World::current().slot<Number>().value += rank;
    sum += World::current().slot<Number>().value;
  });
  CHECK(sum == 3);
}

TEST_CASE("run_ranks: costs little, because tests call it thousands of times") {
  run_ranks(2, [](int) { all_reduce_once(); });
  const double seconds = seconds_of([] {
    for (int i = 0; i < 50; ++i) run_ranks(2, [](int) { all_reduce_once(); });
  });
  WARN("a run of 2 ranks with one all-reduce: " << seconds / 50 * 1e6 << " us");
  CHECK(seconds / 50 < 5e-3);
  const double small = seconds_of([] {
    run_ranks(2, [](int) {
      for (int i = 0; i < 1000; ++i) all_reduce_once();
    });
  });
  WARN("a small all-reduce of 2 ranks: " << small * 1e3 << " us");
  CHECK(small < 1.0);
}
