#include "placements/layout.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <thread>
#include <vector>

#include "placements/error.h"

namespace dtensor {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Order = std::vector<int>;

const MeshLayout* mesh_2d() { return MeshLayout::of(c10::DeviceType::CPU, {2, 3}, {"dp", "tp"}); }
const MeshLayout* mesh_3d() { return MeshLayout::of(c10::DeviceType::CPU, {2, 3, 2}, {"a", "b", "c"}); }

TEST_CASE("equal layouts are one object", "[layout]") {
  const auto* layout = Layout::of(mesh_2d(), {Shard(0), Replicate()});
  CHECK(layout == Layout::of(mesh_2d(), {Shard(0), Replicate()}));
  CHECK(layout != Layout::of(mesh_2d(), {Shard(1), Replicate()}));
  CHECK(layout !=
        Layout::of(MeshLayout::of(c10::DeviceType::CPU, {2, 3}, {"x", "y"}), {Shard(0), Replicate()}));
}

TEST_CASE("trap 15: the cut order counts only where two mesh dimensions cut one tensor dimension", "[layout]") {
  const auto* mixed = Layout::of(mesh_2d(), {Shard(0), Shard(1)});
  CHECK(mixed == Layout::of(mesh_2d(), {Shard(0), Shard(1)}, {1, 0}));
  CHECK(mixed->has_default_order());

  const auto* ordered = Layout::of(mesh_2d(), {Shard(0), Shard(0)});
  const auto* turned = Layout::of(mesh_2d(), {Shard(0), Shard(0)}, {1, 0});
  CHECK(ordered != turned);
  CHECK(ordered == Layout::of(mesh_2d(), {Shard(0), Shard(0)}, {0, 1}));
  CHECK_FALSE(turned->has_default_order());
  CHECK(turned->mesh_dims_cutting(0) == Order{1, 0});
  CHECK(turned->mesh_dims_cutting(1).empty());

  // The middle dimension cuts another tensor dimension: where it stands in the order means nothing.
  const Placements placements = {Shard(0), Shard(1), Shard(0)};
  const auto* outer_last = Layout::of(mesh_3d(), placements, {2, 1, 0});
  CHECK(outer_last == Layout::of(mesh_3d(), placements, {1, 2, 0}));
  CHECK(outer_last == Layout::of(mesh_3d(), placements, {2, 0, 1}));
  CHECK(outer_last->cut_order() == Order{2, 1, 0});
  CHECK(outer_last != Layout::of(mesh_3d(), placements));

  const auto* cycle = Layout::of(mesh_3d(), {Shard(0), Shard(0), Shard(0)}, {1, 2, 0});
  CHECK(cycle->mesh_dims_cutting(0) == Order{1, 2, 0});
  CHECK(cycle->with(1, Replicate())->mesh_dims_cutting(0) == Order{2, 0});
}

TEST_CASE("a layout tells what it holds", "[layout]") {
  const auto* replicated = Layout::of(mesh_2d(), {Replicate(), Replicate()});
  CHECK(replicated->is_replicated());
  CHECK_FALSE(replicated->is_sharded());
  CHECK(replicated->max_dim() == -1);
  const auto* pending = Layout::of(mesh_2d(), {Partial(), Shard(2)});
  CHECK(pending->has_partial());
  CHECK(pending->is_sharded());
  CHECK_FALSE(pending->is_replicated());
  CHECK(pending->max_dim() == 2);
  CHECK(pending->replicated() == replicated);
  CHECK_FALSE(pending->without_partial()->has_partial());
  CHECK(pending->with(0, Replicate())->with(1, Replicate()) == replicated);
  CHECK(pending->mesh_pointer() == mesh_2d());
}

TEST_CASE("what cannot be a layout is refused", "[layout]") {
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {Shard(0)}), PlacementError);
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {Shard(-1), Replicate()}), PlacementError);
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {Shard(0), Shard(0)}, {0, 0}), PlacementError);
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {Shard(0), Shard(0)}, {0}), PlacementError);
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {Shard(0), Shard(0)}, {1, 2}), PlacementError);
}

TEST_CASE("an Interleaved cut is the outermost of its dimension", "[layout]") {
  const auto packed = Interleaved(0, {4, 2, 2});
  CHECK_THROWS_MATCHES(Layout::of(mesh_2d(), {Shard(0), packed}), PlacementError,
                       MessageMatches(ContainsSubstring("outermost") && ContainsSubstring("'tp'")));
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {packed, packed}), PlacementError);
  CHECK_THROWS_AS(Layout::of(mesh_2d(), {packed, Shard(0)}, {1, 0}), PlacementError);
  CHECK_NOTHROW(Layout::of(mesh_2d(), {packed, Shard(0)}));
  CHECK_NOTHROW(Layout::of(mesh_2d(), {Shard(0), packed}, {1, 0}));
  CHECK_NOTHROW(Layout::of(mesh_2d(), {Shard(1), packed}));
}

TEST_CASE("a layout prints its order only where it is not left to right", "[layout]") {
  CHECK(Layout::of(mesh_2d(), {Shard(0), Replicate()})->to_string() ==
        "[Shard(0), Replicate] on (dp=2, tp=3) on cpu");
  CHECK(Layout::of(mesh_2d(), {Shard(0), Shard(0)}, {1, 0})->to_string() ==
        "[Shard(0), Shard(0)] cut in the order tp, dp on (dp=2, tp=3) on cpu");
}

TEST_CASE("threads get the same layout", "[layout]") {
  std::vector<std::vector<const Layout*>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine] {
      for (std::int64_t dim = 100; dim < 300; ++dim) {
        mine.push_back(Layout::of(mesh_2d(), {Shard(dim), Shard(dim)}, {1, 0}));
        mine.push_back(Layout::of(mesh_2d(), {Shard(dim), Shard(dim + 1)}, {1, 0}));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : seen) CHECK(mine == seen.front());
}

}  // namespace
}  // namespace dtensor
