#include "placements/mesh_layout.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "placements/error.h"

namespace dtensor {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Numbers = std::vector<std::int64_t>;
constexpr auto cpu = c10::DeviceType::CPU;
constexpr auto cuda = c10::DeviceType::CUDA;

TEST_CASE("equal meshes are one object", "[mesh_layout]") {
  const auto* mesh = MeshLayout::of(cpu, {2, 3}, {"dp", "tp"});
  CHECK(mesh == MeshLayout::of(cpu, {2, 3}, {"dp", "tp"}));
  CHECK(mesh == MeshLayout::of(cpu, {2, 3}, {"dp", "tp"}, {0, 1, 2, 3, 4, 5}));
  CHECK(mesh != MeshLayout::of(cuda, {2, 3}, {"dp", "tp"}));
  CHECK(mesh != MeshLayout::of(cpu, {3, 2}, {"dp", "tp"}));
  CHECK(mesh != MeshLayout::of(cpu, {2, 3}, {"tp", "dp"}));
  CHECK(mesh != MeshLayout::of(cpu, {2, 3}, {"dp", "tp"}, {1, 0, 2, 3, 4, 5}));
  CHECK(mesh->to_string() == "(dp=2, tp=3) on cpu");
  CHECK(MeshLayout::of(cuda, {2}, {"tp"}, {4, 5})->to_string() == "(tp=2) on cuda of ranks [4, 5]");
}

TEST_CASE("threads get the same mesh", "[mesh_layout]") {
  std::vector<std::vector<const MeshLayout*>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine] {
      for (std::int64_t n = 1; n < 60; ++n) mine.push_back(MeshLayout::of(cpu, {n}, {"racing"}));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : seen) CHECK(mine == seen.front());
}

TEST_CASE("what cannot be a mesh is refused", "[mesh_layout]") {
  CHECK_THROWS_AS(MeshLayout::of(cpu, {}, {}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2, 0}, {"a", "b"}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {-1}, {"a"}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2}, {"a", "b"}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2, 2}, {"a", "a"}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2}, {""}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2}, {"a"}, {0}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2}, {"a"}, {0, -1}), MeshError);
  CHECK_THROWS_AS(MeshLayout::of(cpu, {2}, {"a"}, {3, 3}), MeshError);
  const auto huge = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(MeshLayout::of(cpu, {huge, huge}, {"a", "b"}), MeshError);
}

TEST_CASE("dimensions are found by name", "[mesh_layout]") {
  const auto* mesh = MeshLayout::of(cpu, {2, 3}, {"dp", "tp"});
  CHECK(mesh->dim("tp") == 1);
  CHECK(mesh->find_dim("dp") == 0);
  CHECK_FALSE(mesh->find_dim("pp").has_value());
  CHECK_THROWS_MATCHES(mesh->dim("pp"), MeshError, MessageMatches(ContainsSubstring("dp, tp")));
}

TEST_CASE("coordinates and ranks", "[mesh_layout]") {
  const auto* mesh = MeshLayout::of(cpu, {2, 3}, {"dp", "tp"}, {10, 11, 12, 20, 21, 22});
  for (const auto rank : mesh->ranks()) CHECK(mesh->rank_at(*mesh->coordinate_of(rank)) == rank);
  CHECK(mesh->coordinate_of(21) == Numbers{1, 1});
  CHECK_FALSE(mesh->coordinate_of(0).has_value());
  const Numbers here = {1, 2};
  CHECK(mesh->ranks_along(std::vector<int>{0}, here) == Numbers{12, 22});
  CHECK(mesh->ranks_along(std::vector<int>{1}, here) == Numbers{20, 21, 22});
  CHECK(mesh->ranks_along(std::vector<int>{1, 0}, here) == Numbers{10, 20, 11, 21, 12, 22});
  CHECK(mesh->ranks_along(std::vector<int>{}, here) == Numbers{22});
}

TEST_CASE("slices keep the order asked for", "[mesh_layout]") {
  const auto* mesh = MeshLayout::of(cpu, {2, 2, 3}, {"pp", "dp", "tp"});
  const Numbers here = {1, 0, 2};
  CHECK(mesh->slice({"tp"}, here) == MeshLayout::of(cpu, {3}, {"tp"}, {6, 7, 8}));
  CHECK(mesh->slice({"tp", "pp"}, here) == MeshLayout::of(cpu, {3, 2}, {"tp", "pp"}, {0, 6, 1, 7, 2, 8}));
  CHECK(mesh->slice({"pp", "dp", "tp"}, here) == mesh);
  CHECK_THROWS_AS(mesh->slice({"tp", "tp"}, here), MeshError);
  CHECK_THROWS_AS(mesh->slice({"cp"}, here), MeshError);
  CHECK_THROWS_AS(mesh->slice({}, here), MeshError);
}

TEST_CASE("slices by all ranks of a mesh divide it", "[mesh_layout]") {
  const auto* mesh = MeshLayout::of(cpu, {2, 3, 2}, {"a", "b", "c"});
  std::set<const MeshLayout*> parts;
  std::set<std::int64_t> ranks;
  for (const auto rank : mesh->ranks()) {
    const auto* part = mesh->slice({"c", "a"}, *mesh->coordinate_of(rank));
    CHECK(part->coordinate_of(rank).has_value());
    if (parts.insert(part).second) ranks.insert(part->ranks().begin(), part->ranks().end());
  }
  CHECK(parts.size() == 3);
  CHECK(ranks.size() == 12);
}

TEST_CASE("flatten merges adjacent dimensions", "[mesh_layout]") {
  const auto* mesh = MeshLayout::of(cpu, {2, 3, 2}, {"a", "b", "c"});
  CHECK(mesh->flatten({"a", "b"}, "ab") == MeshLayout::of(cpu, {6, 2}, {"ab", "c"}));
  CHECK(mesh->flatten({"b", "c"}, "bc") == MeshLayout::of(cpu, {2, 6}, {"a", "bc"}));
  CHECK(mesh->flatten({"a", "b", "c"}, "all") == MeshLayout::of(cpu, {12}, {"all"}));
  CHECK(mesh->flatten({"b"}, "renamed") == MeshLayout::of(cpu, {2, 3, 2}, {"a", "renamed", "c"}));
  CHECK_THROWS_AS(mesh->flatten({"b", "a"}, "x"), MeshError);
  CHECK_THROWS_AS(mesh->flatten({"a", "c"}, "x"), MeshError);
  CHECK_THROWS_AS(mesh->flatten({"c", "d"}, "x"), MeshError);
  CHECK_THROWS_AS(mesh->flatten({"a", "b"}, "c"), MeshError);
  CHECK_THROWS_AS(mesh->flatten({}, "x"), MeshError);
}

TEST_CASE("K65: flattened and size-one mesh dimensions", "[mesh_layout]") {
  for (const bool large : {true, false}) {
    const Numbers shape = large ? Numbers{1, 2, 2, 1} : Numbers{1, 1, 1, 1};
    const std::int64_t middle = large ? 4 : 1;
    const auto* mesh = MeshLayout::of(cpu, shape, {"a", "b", "c", "d"});
    const auto* flat = mesh->flatten({"b", "c"}, "bc");
    for (const auto rank : mesh->ranks()) {
      const auto here = *flat->coordinate_of(rank);
      CHECK(here == Numbers{0, rank, 0});
      const auto* whole = flat->slice({"a", "bc", "d"}, here);
      CHECK(whole == flat);
      CHECK(whole->shape() == Numbers{1, middle, 1});
      CHECK(flat->slice({"bc"}, here)->shape() == Numbers{middle});
      CHECK(flat->slice({"bc"}, here)->ranks() == mesh->ranks());
      CHECK(flat->slice({"a", "d"}, here) == MeshLayout::of(cpu, {1, 1}, {"a", "d"}, {rank}));
      CHECK(flat->slice({"d", "bc"}, here)->shape() == Numbers{1, middle});
    }
  }
}

TEST_CASE("K66: a slice of a slice is a slice of the root", "[mesh_layout]") {
  const auto* root = MeshLayout::of(cpu, {2, 2, 2}, {"ddp", "fsdp", "tp"});
  for (const auto rank : root->ranks()) {
    const auto at_root = *root->coordinate_of(rank);
    const auto* part = root->slice({"ddp", "fsdp"}, at_root);
    CHECK(part->slice({"fsdp"}, *part->coordinate_of(rank)) == root->slice({"fsdp"}, at_root));
    const auto* turned = root->slice({"tp", "fsdp"}, at_root);
    CHECK(turned->slice({"fsdp"}, *turned->coordinate_of(rank)) == root->slice({"fsdp"}, at_root));
    const auto* flat = part->flatten({"ddp", "fsdp"}, "data");
    CHECK(flat == root->flatten({"ddp", "fsdp"}, "data")->slice({"data"}, Numbers{0, at_root[2]}));
  }
}

}  // namespace
}  // namespace dtensor
