#include "placements/shard_math.h"

#include <catch2/catch_test_macros.hpp>
#include <utility>
#include <vector>

#include "placements/error.h"
#include "simulator.h"

namespace dtensor::shard_math {
namespace {

using Numbers = std::vector<std::int64_t>;
using Intervals = std::vector<Interval>;

const MeshLayout* mesh_of(const Numbers& shape) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shape.size(); ++i) names.push_back(std::string(1, static_cast<char>('a' + i)));
  return MeshLayout::of(c10::DeviceType::CPU, shape, names);
}

TEST_CASE("pieces are ceil(n/k), the last ones smaller or empty", "[shard_math]") {
  CHECK(piece(10, 4, 0) == Interval{0, 3});
  CHECK(piece(10, 4, 3) == Interval{9, 1});
  CHECK(piece(5, 4, 2) == Interval{4, 1});
  CHECK(piece(5, 4, 3) == Interval{5, 0});
  CHECK(piece(0, 3, 1) == Interval{0, 0});
  CHECK(piece(2, 5, 4) == Interval{2, 0});
  CHECK(piece(7, 1, 0) == Interval{0, 7});
}

TEST_CASE("pieces are laid end to end", "[shard_math]") {
  for (std::int64_t n = 0; n <= 20; ++n) {
    for (std::int64_t pieces = 1; pieces <= 9; ++pieces) {
      std::int64_t end = 0;
      for (std::int64_t index = 0; index < pieces; ++index) {
        const auto [offset, size] = piece(n, pieces, index);
        REQUIRE(offset == end);
        REQUIRE(size >= 0);
        REQUIRE(size <= (n + pieces - 1) / pieces);
        end += size;
      }
      REQUIRE(end == n);
    }
  }
}

TEST_CASE("an Interleaved cut takes a piece of every part", "[shard_math]") {
  const auto packed = Interleaved(0, {4, 2, 2});
  CHECK(cut(packed, 8, 2, 0) == Intervals{{0, 2}, {4, 1}, {6, 1}});
  CHECK(cut(packed, 8, 2, 1) == Intervals{{2, 2}, {5, 1}, {7, 1}});
  CHECK(cut(packed, 8, 3, 2) == Intervals{{4, 0}, {6, 0}, {8, 0}});
  CHECK(cut_size(packed, 8, 3, 0) == 4);
  CHECK(cut_size(packed, 8, 3, 1) == 4);
  CHECK(cut_size(packed, 8, 3, 2) == 0);
  CHECK_THROWS_AS(cut(packed, 9, 2, 0), PlacementError);
  CHECK_THROWS_AS(cut_size(packed, 7, 2, 0), PlacementError);
}

TEST_CASE("nested cuts apply to the piece, outermost first", "[shard_math]") {
  // 10 elements on (2, 3). Left to right: 5 + 5, each 2 + 2 + 1. The other way: 4 + 4 + 2, each halved.
  const auto* mesh = mesh_of({2, 3});
  const auto* ordered = Layout::of(mesh, {Shard(0), Shard(0)});
  const auto* turned = Layout::of(mesh, {Shard(0), Shard(0)}, {1, 0});
  CHECK(local_intervals(*ordered, 0, 10, Numbers{1, 1}) == Intervals{{7, 2}});
  CHECK(local_intervals(*ordered, 0, 10, Numbers{1, 2}) == Intervals{{9, 1}});
  CHECK(local_intervals(*turned, 0, 10, Numbers{1, 1}) == Intervals{{6, 2}});
  CHECK(local_intervals(*turned, 0, 10, Numbers{1, 2}) == Intervals{{9, 1}});
  CHECK(local_intervals(*turned, 0, 10, Numbers{0, 1}) == Intervals{{4, 2}});

  // A Shard inside an Interleaved cuts what the rank stores, across parts: 4 = [0, 1 | 4, 5], in 3 pieces of
  // 2, 2, 0.
  const auto* packed = Layout::of(mesh, {Interleaved(0, {4, 4}), Shard(0)});
  CHECK(local_intervals(*packed, 0, 8, Numbers{0, 0}) == Intervals{{0, 2}});
  CHECK(local_intervals(*packed, 0, 8, Numbers{1, 1}) == Intervals{{6, 2}});
  CHECK(local_intervals(*packed, 0, 8, Numbers{1, 2}).empty());
}

TEST_CASE("boxes are the product of the runs of each dimension", "[shard_math]") {
  const auto* mesh = mesh_of({2, 2});
  const auto* layout = Layout::of(mesh, {Interleaved(0, {2, 2}), Shard(1)});
  const std::vector<Box> expected = {{{1, 2}, {1, 1}}, {{3, 2}, {1, 1}}};
  CHECK(local_boxes(*layout, Numbers{4, 3}, Numbers{1, 1}) == expected);
  CHECK(local_boxes(*layout, Numbers{4, 1}, Numbers{1, 1}).empty());
  const auto* replicated = Layout::of(mesh, {Replicate(), Partial()});
  CHECK(local_boxes(*replicated, Numbers{}, Numbers{0, 1}) == std::vector<Box>{Box{}});
  CHECK(local_boxes(*replicated, Numbers{2, 3}, Numbers{0, 1}) == std::vector<Box>{{{0, 0}, {2, 3}}});
}

TEST_CASE("a layout that cuts a dimension the tensor lacks is refused", "[shard_math]") {
  const auto* layout = Layout::of(mesh_of({2}), {Shard(1)});
  CHECK_THROWS_AS(local_sizes(*layout, Numbers{4}, Numbers{0}), PlacementError);
  CHECK_THROWS_AS(local_boxes(*layout, Numbers{}, Numbers{0}), PlacementError);
  CHECK_NOTHROW(local_sizes(*layout, Numbers{4, 4}, Numbers{0}));
}

TEST_CASE("K17: evenness counts all mesh dimensions that cut a tensor dimension", "[shard_math]") {
  const auto* layout = Layout::of(mesh_of({2, 3}), {Shard(0), Shard(0)});
  CHECK(is_even(*layout, 0, 12));
  CHECK(is_even(*layout, 0, 6));
  CHECK(is_even(*layout, 0, 0));
  CHECK_FALSE(is_even(*layout, 0, 2));  // divisible by the first cut alone
  CHECK_FALSE(is_even(*layout, 0, 3));  // divisible by the second cut alone
  CHECK_FALSE(is_even(*layout, 0, 4));
  CHECK(is_even(*layout, 1, 5));  // not cut at all
}

// Every layout against index lists that are cut element by element, without any arithmetic of offsets.
void check_against_lists(const Numbers& shape, std::int64_t largest) {
  const auto* mesh = mesh_of(shape);
  for (std::int64_t n = 0; n <= largest; ++n) {
    const Placements options = {Replicate(), Shard(0), Partial(), Interleaved(0, {n / 2, 0, n - n / 2})};
    for (const auto* layout : simulator::all_layouts(mesh, options)) {
      bool even = true;
      std::vector<int> copies(static_cast<std::size_t>(n), 0);
      const auto first = simulator::held_indices(*layout, 0, n, Numbers(shape.size(), 0)).size();
      for (const auto rank : mesh->ranks()) {
        const auto coordinate = *mesh->coordinate_of(rank);
        const auto expected = simulator::held_indices(*layout, 0, n, coordinate);
        Numbers indices;
        std::int64_t end = -1;
        for (const auto& [offset, size] : local_intervals(*layout, 0, n, coordinate)) {
          REQUIRE(size > 0);
          REQUIRE(offset != end);  // merged
          end = offset + size;
          for (std::int64_t i = 0; i < size; ++i) indices.push_back(offset + i);
        }
        INFO(layout->to_string() << ", " << n << " elements, rank " << rank);
        REQUIRE(indices == expected);
        const auto size = static_cast<std::int64_t>(expected.size());
        REQUIRE(local_size(*layout, 0, n, coordinate) == size);
        REQUIRE(local_sizes(*layout, Numbers{n, 3}, coordinate) == Numbers{size, 3});
        even = even && expected.size() == first;
        for (const auto index : expected) ++copies[static_cast<std::size_t>(index)];
      }
      REQUIRE(is_even(*layout, 0, n) == even);
      std::int64_t times = mesh->size();
      for (const int mesh_dim : layout->mesh_dims_cutting(0)) times /= mesh->size(mesh_dim);
      REQUIRE(copies == std::vector<int>(static_cast<std::size_t>(n), static_cast<int>(times)));
    }
  }
}

TEST_CASE("every layout of one dimension against index lists", "[shard_math]") {
  for (const Numbers& shape : std::vector<Numbers>{{1}, {2}, {3}, {2, 2}, {2, 3}, {3, 2}, {1, 2}}) {
    check_against_lists(shape, 13);
  }
  check_against_lists({2, 3, 2}, 14);
  check_against_lists({3, 1, 4}, 14);
}

}  // namespace
}  // namespace dtensor::shard_math
