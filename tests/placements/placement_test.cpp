#include "placements/placement.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <thread>
#include <vector>

#include "placements/error.h"

namespace dtensor {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("placements are values", "[placement]") {
  CHECK(Placement{} == Replicate());
  CHECK(Shard(1) == Shard(1));
  CHECK(Shard(1) != Shard(0));
  CHECK(Partial() == Partial(ReduceOp::sum));
  CHECK(Partial(ReduceOp::avg) != Partial());
  CHECK(Interleaved(0, {4, 2, 2}) == Interleaved(0, {4, 2, 2}));
  CHECK(Interleaved(0, {4, 2, 2}) != Interleaved(0, {4, 4}));
  CHECK(Interleaved(0, {8}) != Shard(0));
}

TEST_CASE("a placement tells what it cuts", "[placement]") {
  CHECK(Replicate().dim() == -1);
  CHECK(Partial().dim() == -1);
  CHECK_FALSE(Partial().is_sharded());
  CHECK(Shard(2).is_sharded(2));
  CHECK_FALSE(Shard(2).is_sharded(1));
  CHECK(Interleaved(1, {3, 3}).is_sharded(1));
  CHECK(Interleaved(1, {3, 3}).parts() == std::vector<std::int64_t>{3, 3});
  CHECK(Interleaved(1, {3, 3}).with_dim(0) == Interleaved(0, {3, 3}));
}

TEST_CASE("negative dimensions are counted from the end", "[placement]") {
  CHECK(Shard(-1).normalized(3) == Shard(2));
  CHECK(Shard(-3).normalized(3) == Shard(0));
  CHECK(Interleaved(-1, {2, 2}).normalized(2) == Interleaved(1, {2, 2}));
  CHECK(Replicate().normalized(0) == Replicate());
  CHECK(Partial().normalized(0) == Partial());
  CHECK_THROWS_AS(Shard(3).normalized(3), PlacementError);
  CHECK_THROWS_AS(Shard(-4).normalized(3), PlacementError);
  CHECK_THROWS_AS(Shard(0).normalized(0), PlacementError);
}

TEST_CASE("text and back", "[placement]") {
  const Placements all = {Replicate(),
                          Shard(0),
                          Shard(-1),
                          Partial(),
                          Partial(ReduceOp::avg),
                          Partial(ReduceOp::product),
                          Partial(ReduceOp::max),
                          Partial(ReduceOp::min),
                          Interleaved(0, {4, 2, 2}),
                          Interleaved(-1, {0})};
  for (const auto& placement : all) {
    INFO(placement.to_string());
    CHECK(Placement::parse(placement.to_string()) == placement);
  }
  CHECK(Interleaved(0, {4, 2, 2}).to_string() == "Interleaved(0, [4, 2, 2])");
  CHECK(to_string(Placements{Shard(0), Replicate()}) == "[Shard(0), Replicate]");
  CHECK(to_string(Placements{}) == "[]");
  CHECK(Placement::parse("Partial") == Partial());
  CHECK(Placement::parse(" Shard ( 1 ) ") == Shard(1));
  CHECK(Placement::parse("Interleaved(0,[4,2])") == Interleaved(0, {4, 2}));
}

TEST_CASE("text that is no placement is refused with what is accepted", "[placement]") {
  for (const std::string text : {"", "shard(0)", "Shard", "Shard()", "Shard(0", "Shard(0) x", "Shard(a)",
                                 "Partial(mean)", "Replicate(0)", "Interleaved(0)", "Interleaved(0, [])",
                                 "Interleaved(0, [1,])", "Shard(99999999999999999999)"}) {
    INFO(text);
    CHECK_THROWS_MATCHES(Placement::parse(text), PlacementError,
                         MessageMatches(ContainsSubstring("Shard(DIM)")));
  }
  CHECK_THROWS_AS(Interleaved(0, {}), PlacementError);
  CHECK_THROWS_AS(Interleaved(0, {3, -1}), PlacementError);
  CHECK_THROWS_AS(Placement::parse("Interleaved(0, [3, -1])"), PlacementError);
}

TEST_CASE("threads agree on interned parts", "[placement]") {
  std::vector<Placements> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine] {
      for (std::int64_t i = 0; i < 300; ++i) mine.push_back(Interleaved(0, {i, 1000 + i}));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : seen) CHECK(mine == seen.front());
}

}  // namespace
}  // namespace dtensor
