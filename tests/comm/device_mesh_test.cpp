// Meshes as ranks see them. Cases K64 to K68 of the list of known failures of tensor-parallel systems.
#include "comm/device_mesh.h"

#include "comm/run_ranks.h"
#include "placements/error.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace dtensor;
using Catch::Matchers::ContainsSubstring;

namespace {

using Sizes = std::vector<std::int64_t>;

std::string refusal(const std::function<void()>& function) {
  try {
    function();
  } catch (const MeshError& error) {
    return error.what();
  }
  return "no MeshError";
}

// The all-reduced sum of `value` over a group.
double sum_over(Group& group, double value) {
  auto tensor = at::zeros({1}).add(value);
  group.all_reduce(tensor).wait();
  return tensor.item<double>();
}

// Runs on every rank and returns what each said, in rank order.
template <typename Function>
auto on_ranks(int world, const Function& function) {
  std::vector<decltype(function(0))> results(static_cast<std::size_t>(world));
  run_ranks(world, [&](int rank) { results[static_cast<std::size_t>(rank)] = function(rank); });
  return results;
}

}  // namespace

TEST_CASE("K64 Mesh larger than the world") {
  CHECK_THAT(refusal([] { init_device_mesh(at::kCPU, {2}, {"tp"}); }),
             ContainsSubstring("call dtensor::init()"));
  for (const Sizes& shape :
       {Sizes{4}, Sizes{3, 3}, Sizes{2, 2}, Sizes{0}, Sizes{}, Sizes{-2}, Sizes{-1, -1}}) {
    const auto texts = on_ranks(2, [&](int) {
      std::vector<std::string> names;
      for (std::size_t i = 0; i < shape.size(); ++i) names.push_back("d" + std::to_string(i));
      return refusal([&] { init_device_mesh(at::kCPU, shape, names); });
    });
    for (const auto& text : texts) {
      CHECK_THAT(text, !ContainsSubstring("no MeshError"));
      if (shape == Sizes{3, 3}) {
        CHECK_THAT(text, ContainsSubstring("(3, 3)") && ContainsSubstring("needs 9 ranks") &&
                             ContainsSubstring("this world has 2 ranks"));
      }
    }
  }
  for (const Sizes& ranks : {Sizes{0, 0}, Sizes{0, 5}}) {
    const auto texts =
        on_ranks(2, [&](int) { return refusal([&] { device_mesh(at::kCPU, {2}, {"tp"}, ranks); }); });
    for (const auto& text : texts) CHECK_THAT(text, ContainsSubstring(ranks[1] == 0 ? "0" : "rank 5"));
  }
}

TEST_CASE("K65 Flattened and size-one mesh dims") {
  for (const int world : {4, 1}) {
    const auto results = on_ranks(world, [&](int rank) {
      const std::int64_t side = world == 4 ? 2 : 1;
      const auto mesh = init_device_mesh(at::kCPU, {1, side, side, 1}, {"a", "b", "c", "d"});
      const auto flat = mesh.flatten({"b", "c"}, "bc");
      std::string wrong;
      const auto expect = [&](bool holds, const char* what) {
        if (!holds) wrong += std::string(what) + "; ";
      };
      expect(flat.layout().shape() == Sizes{1, world, 1}, "flattened shape");
      expect(flat.slice({"a", "bc", "d"}).layout().shape() == Sizes{1, world, 1}, "(a, bc, d)");
      expect(flat.slice({"bc"}).layout().shape() == Sizes{world}, "(bc)");
      expect(mesh.slice({"a", "d"}).layout().shape() == Sizes{1, 1}, "(a, d)");
      expect(flat.slice({"bc"}).coordinate("bc") == rank, "coordinate");
      expect(mesh.slice({"d", "c"}).coordinate() == Sizes{0, rank % side}, "slice in another order");
      expect(sum_over(flat.group("bc"), 1) == world, "sum over bc");
      expect(sum_over(flat.slice({"bc"}).group("bc"), 1) == world, "sum over the slice's bc");
      expect(sum_over(mesh.group("a"), 1) == 1, "sum over a");
      expect(sum_over(mesh.whole_group(), rank) == world * (world - 1) / 2, "sum over all");
      return wrong;
    });
    for (const auto& wrong : results) CHECK(wrong == "");
  }
}

TEST_CASE("K66 Slice of a slice") {
  const auto results = on_ranks(8, [](int rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"ddp", "fsdp", "tp"});
    const auto slice = mesh.slice({"ddp", "fsdp"}).slice({"fsdp"});
    if (slice != mesh["fsdp"]) return -1.0;
    return sum_over(slice.group("fsdp"), rank);
  });
  for (int rank = 0; rank < 8; ++rank) {
    CHECK(results[static_cast<std::size_t>(rank)] == (rank & ~2) + (rank | 2));
  }
}

TEST_CASE("K67 Ranks outside the mesh call the same code") {
  const auto results = on_ranks(4, [](int rank) -> std::string {
    const auto mesh = device_mesh(at::kCPU, {2}, {"tp"}, {0, 1});
    if (mesh.is_member()) return sum_over(mesh.group("tp"), rank) == 1 ? "" : "wrong sum";
    if (!mesh.slice({"tp"}).layout().ndim() || mesh["tp"].is_member())
      return "a slice has the outsider in it";
    for (const auto& text : {refusal([&] { mesh.coordinate(); }), refusal([&] { mesh.group("tp"); }),
                             refusal([&] { mesh.whole_group(); })}) {
      if (text.find("rank " + std::to_string(rank) + " is outside the mesh") == std::string::npos)
        return text;
    }
    return "";
  });
  for (const auto& text : results) CHECK(text == "");
}

TEST_CASE("K68 Mesh built by members only") {
  const auto results = on_ranks(4, [](int rank) {
    const bool low = rank < 2;
    const auto mine = device_mesh(at::kCPU, {2}, {"tp"}, low ? Sizes{0, 1} : Sizes{2, 3});
    double sum = sum_over(mine.group("tp"), rank);
    // Two meshes, made in different order.
    const auto make_even = [] { return device_mesh(at::kCPU, {2}, {"pair"}, {0, 2}); };
    const auto make_all = [] { return init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"}); };
    if (rank == 0) {
      const auto even = make_even();
      const auto all = make_all();
      sum += sum_over(all.group("dp"), 10) + sum_over(even.group("pair"), 100);
    } else {
      const auto all = make_all();
      const auto even = make_even();
      sum += sum_over(all.group("dp"), 10);
      if (rank == 2) sum += sum_over(even.group("pair"), 100);
    }
    return sum;
  });
  CHECK(results == std::vector<double>{221, 21, 225, 25});
}

TEST_CASE("meshes: an open size takes what is left of the world") {
  const auto results = on_ranks(4, [](int) {
    const auto mesh = init_device_mesh(at::kCPU, {-1, 2}, {"dp", "tp"});
    const auto text = refusal([] { init_device_mesh(at::kCPU, {-1, 3}, {"dp", "tp"}); });
    return std::pair(mesh.layout().shape(), text);
  });
  for (const auto& [shape, text] : results) {
    CHECK(shape == Sizes{2, 2});
    CHECK_THAT(text, ContainsSubstring("world of 4 ranks is not a multiple of 3"));
  }
}

TEST_CASE("meshes: equal ones are one object; groups of equal ranks and name are shared") {
  const auto results = on_ranks(4, [](int) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto again = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto other = init_device_mesh(at::kCPU, {2, 2}, {"dp", "ep"});
    return std::vector<bool>{mesh == again, mesh != other, &mesh.group("tp") == &mesh["tp"].group(0),
                             &mesh.group("tp") != &other.group("ep"), mesh.device() == c10::Device(at::kCPU)};
  });
  for (const auto& facts : results) CHECK(facts == std::vector<bool>(5, true));
}

TEST_CASE("meshes: ranks that are threads hold CPU tensors only") {
  const auto texts =
      on_ranks(2, [](int) { return refusal([] { init_device_mesh(at::kCUDA, {2}, {"tp"}); }); });
  for (const auto& text : texts)
    CHECK_THAT(text, ContainsSubstring("threads of one process hold CPU tensors only"));
}
