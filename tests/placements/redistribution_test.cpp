#include "placements/redistribution.h"

#include <catch2/catch_test_macros.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "placements/error.h"
#include "simulator.h"

namespace dtensor {
namespace {

using simulator::Numbers;
using Order = std::vector<int>;
using Kinds = std::vector<StepKind>;
constexpr std::int64_t element_size = 4;

const MeshLayout* mesh_of(const Numbers& shape) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shape.size(); ++i) names.push_back(std::string(1, static_cast<char>('a' + i)));
  return MeshLayout::of(c10::DeviceType::CPU, shape, names);
}

Kinds kinds_of(const RedistributionPlan& plan) {
  Kinds kinds;
  for (const auto& step : plan.steps) kinds.push_back(step.kind);
  return kinds;
}

Kinds kinds(const Layout* from, const Layout* to, const Numbers& sizes) {
  return kinds_of(plan_redistribution(from, to, sizes, element_size));
}

std::string describe(const Layout* from, const Layout* to, const Numbers& sizes,
                     const RedistributionPlan& plan) {
  std::ostringstream text;
  text << from->to_string() << " -> " << to->to_string() << ", sizes";
  for (const auto size : sizes) text << ' ' << size;
  for (const auto& step : plan.steps) {
    text << "\n  " << to_string(step.kind) << " on mesh dimension " << step.mesh_dim << " to "
         << step.after->to_string() << ", " << step.bytes << " bytes";
  }
  return text.str();
}

// All that must hold of every plan.
void check_plan(simulator::Tensor& tensor, const Layout* from, const Layout* to, const Numbers& sizes) {
  const auto plan = plan_redistribution(from, to, sizes, element_size);
  auto fault = tensor.run(from, to, plan, element_size);
  if (from == to && !plan.steps.empty()) fault = "moves where nothing is to do";
  if (plan.steps.size() > 3 * static_cast<std::size_t>(from->mesh_ndim()))
    fault = "is longer than 3 steps a dimension";
  double cost = 0;
  bool talks = false;
  for (const auto& step : plan.steps) {
    const bool is_free = step.kind == StepKind::slice || step.kind == StepKind::to_partial ||
                         from->mesh().size(step.mesh_dim) == 1;
    if (communicates(step) == is_free) fault = "is wrong about who talks";
    if (is_free && step.bytes != 0) fault = "counts bytes of a free step";
    if (!is_free) cost += latency_bytes + static_cast<double>(step.bytes);
    talks = talks || !is_free;
  }
  if (plan.cost != cost || (plan.cost == 0) == talks) fault = "has a wrong cost";
  if (fault) FAIL(*fault << "\n" << describe(from, to, sizes, plan));
}

// All pairs of layouts, for every given tensor. `options` of a tensor of these sizes: see below.
template <typename Options>
std::size_t check_all_pairs(const Numbers& shape, const std::vector<Numbers>& tensors, Options options) {
  const auto* mesh = mesh_of(shape);
  std::size_t count = 0;
  for (const auto& sizes : tensors) {
    const auto layouts = simulator::all_layouts(mesh, options(sizes));
    simulator::Tensor tensor(mesh, sizes);
    for (const auto* from : layouts) {
      for (const auto* to : layouts) check_plan(tensor, from, to, sizes);
    }
    count += layouts.size() * layouts.size();
  }
  return count;
}

Placement packed(std::int64_t dim, std::int64_t n) {
  return Interleaved(dim, {n / 2, 0, (n + 1) / 2 - n / 4, n / 4});
}

Placements many_options(const Numbers& sizes) {
  Placements options = {Replicate(), Partial(), Partial(ReduceOp::avg), Partial(ReduceOp::max),
                        Partial(ReduceOp::product)};
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    options.push_back(Shard(static_cast<std::int64_t>(dim)));
  if (!sizes.empty()) options.push_back(packed(0, sizes[0]));
  return options;
}

Placements all_options(const Numbers& sizes) {
  Placements options = many_options(sizes);
  options.push_back(Partial(ReduceOp::min));
  for (std::size_t dim = 1; dim < sizes.size(); ++dim) {
    options.push_back(packed(static_cast<std::int64_t>(dim), sizes[dim]));
  }
  if (!sizes.empty()) options.push_back(Interleaved(0, {sizes[0]}));
  return options;
}

Placements few_options(const Numbers& sizes) {
  Placements options = {Replicate(), Partial(), Partial(ReduceOp::max)};
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    options.push_back(Shard(static_cast<std::int64_t>(dim)));
  return options;
}

std::vector<Numbers> grid(const Numbers& rows, const Numbers& columns) {
  std::vector<Numbers> result;
  for (const auto row : rows) {
    for (const auto column : columns) result.push_back({row, column});
  }
  return result;
}

const std::vector<Numbers> scalars_and_vectors = {{}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}};

TEST_CASE("all pairs on meshes of one dimension", "[redistribution]") {
  const Numbers zero_to_nine = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const Numbers& shape : std::vector<Numbers>{{1}, {2}, {3}}) {
    CHECK(check_all_pairs(shape, scalars_and_vectors, all_options) > 0);
    CHECK(check_all_pairs(shape, grid(zero_to_nine, zero_to_nine), all_options) > 0);
  }
}

TEST_CASE("all pairs on meshes of two dimensions", "[redistribution]") {
  for (const Numbers& shape : std::vector<Numbers>{{2, 2}, {2, 3}, {3, 2}, {1, 2}}) {
    CHECK(check_all_pairs(shape, scalars_and_vectors, all_options) > 0);
    CHECK(check_all_pairs(shape, grid({0, 1, 2, 4, 5, 7, 9}, {0, 1, 3, 6, 8}), many_options) > 0);
  }
}

TEST_CASE("all pairs on a mesh of three dimensions", "[redistribution]") {
  CHECK(check_all_pairs({2, 3, 2}, {{}, {0}, {1}, {5}, {12}}, few_options) > 0);
  CHECK(check_all_pairs({2, 3, 2}, {{12}}, [](const Numbers& sizes) {
          return Placements{Replicate(), Shard(0), Partial(), packed(0, sizes[0])};
        }) > 0);
  CHECK(check_all_pairs({2, 3, 2}, grid({0, 1, 5, 12}, {0, 1, 5, 12}), [](const Numbers&) {
          return Placements{Replicate(), Shard(0), Shard(1), Partial()};
        }) > 0);
}

TEST_CASE("all pairs on a mesh with dimensions of size 1 between others", "[redistribution]") {
  CHECK(check_all_pairs({2, 1, 2}, {{0}, {5}, {8}}, few_options) > 0);
  CHECK(check_all_pairs({1, 2, 1}, {{5, 4}}, many_options) > 0);
}

TEST_CASE("random larger cases", "[redistribution]") {
  std::mt19937 random(20240607);  // the standard fixes what it yields, but not what distributions make of it
  const auto below = [&random](std::size_t n) { return static_cast<std::int64_t>(random() % n); };
  const std::vector<Numbers> shapes = {{4},       {7},       {2, 4},    {4, 4},      {5, 3},
                                       {2, 2, 2}, {4, 1, 3}, {2, 3, 4}, {2, 2, 1, 2}};
  const ReduceOp ops[] = {ReduceOp::sum,     ReduceOp::sum, ReduceOp::avg,
                          ReduceOp::product, ReduceOp::max, ReduceOp::min};
  for (int round = 0; round < 2000; ++round) {
    const auto* mesh = mesh_of(shapes[static_cast<std::size_t>(below(shapes.size()))]);
    Numbers sizes(static_cast<std::size_t>(below(4)));
    const std::size_t limit = sizes.size() == 1 ? 200 : sizes.size() == 2 ? 24 : 9;
    for (auto& size : sizes) size = below(limit + 1);
    const auto draw = [&]() -> const Layout* {
      while (true) {
        Placements placements;
        Order order;
        for (int mesh_dim = 0; mesh_dim < mesh->ndim(); ++mesh_dim) {
          order.insert(order.begin() + below(order.size() + 1), mesh_dim);
          const auto kind = below(6);
          const auto dim = sizes.empty() ? 0 : below(sizes.size());
          if (kind == 0) {
            placements.push_back(Replicate());
          } else if (kind == 1 || sizes.empty()) {
            placements.push_back(Partial(ops[below(std::size(ops))]));
          } else if (kind == 2) {
            placements.push_back(packed(dim, sizes[static_cast<std::size_t>(dim)]));
          } else {
            placements.push_back(Shard(dim));
          }
        }
        try {
          return Layout::of(mesh, placements, order);
        } catch (const PlacementError&) {  // an Interleaved cut that is not the outermost: draw again
        }
      }
    };
    simulator::Tensor tensor(mesh, sizes);
    const auto* from = draw();
    check_plan(tensor, from, draw(), sizes);
  }
}

TEST_CASE("one mesh dimension: each pair of kinds takes its one collective", "[redistribution]") {
  const auto* mesh = mesh_of({4});
  const auto layout = [mesh](Placement placement) { return Layout::of(mesh, {placement}); };
  const Numbers sizes = {8, 8};
  const auto* whole = layout(Replicate());
  const auto* pending = layout(Partial());
  const auto* rows = layout(Shard(0));
  const auto* columns = layout(Shard(1));
  CHECK(kinds(pending, whole, sizes) == Kinds{StepKind::all_reduce});
  CHECK(kinds(pending, rows, sizes) == Kinds{StepKind::reduce_scatter});
  CHECK(kinds(rows, whole, sizes) == Kinds{StepKind::all_gather});
  CHECK(kinds(rows, columns, sizes) == Kinds{StepKind::all_to_all});
  CHECK(kinds(rows, layout(Interleaved(0, {4, 4})), sizes) == Kinds{StepKind::all_to_all});
  CHECK(kinds(whole, rows, sizes) == Kinds{StepKind::slice});
  CHECK(kinds(whole, pending, sizes) == Kinds{StepKind::to_partial});
  CHECK(kinds(rows, pending, sizes) == Kinds{StepKind::all_gather, StepKind::to_partial});
  CHECK(kinds(pending, layout(Partial(ReduceOp::max)), sizes) ==
        Kinds{StepKind::all_reduce, StepKind::to_partial});
  CHECK(kinds(rows, rows, sizes).empty());
}

TEST_CASE("bytes are what the busiest rank receives", "[redistribution]") {
  const auto* mesh = mesh_of({4});
  const auto bytes = [mesh](Placement from, Placement to, const Numbers& sizes) {
    return plan_redistribution(Layout::of(mesh, {from}), Layout::of(mesh, {to}), sizes, element_size).bytes;
  };
  CHECK(bytes(Partial(), Replicate(), {8, 8}) == 64 * 4);
  CHECK(bytes(Shard(0), Replicate(), {8, 8}) == 48 * 4);
  CHECK(bytes(Partial(), Shard(0), {8, 8}) == 48 * 4);
  CHECK(bytes(Shard(0), Shard(1), {8, 8}) == 12 * 4);
  CHECK(bytes(Replicate(), Shard(0), {8, 8}) == 0);
  CHECK(bytes(Shard(0), Replicate(), {5}) == 5 * 4);  // pieces 2, 2, 1, 0: the last rank has nothing yet
  CHECK(bytes(Partial(), Replicate(), {}) == 4);
}

TEST_CASE("the busiest rank need not have the largest piece", "[redistribution]") {
  // 13 rows are cut in 7 and 6, then in threes: 3, 3, 1 and 2, 2, 2. Of two columns the third rank keeps none, so it
  // gives away most in the half of 6.
  const auto* mesh = mesh_of({2, 3});
  const auto* from = Layout::of(mesh, {Shard(0), Shard(0)});
  const auto* to = Layout::of(mesh, {Shard(0), Shard(1)});
  const auto plan = plan_redistribution(from, to, Numbers{13, 2}, element_size);
  CHECK(kinds_of(plan) == Kinds{StepKind::all_to_all});
  CHECK(plan.bytes == 4 * 4);
}

TEST_CASE("free slices come before what they make smaller", "[redistribution]") {
  const auto* mesh = mesh_of({2, 2});
  const Numbers sizes = {8, 8};
  CHECK(kinds(Layout::of(mesh, {Partial(), Replicate()}), Layout::of(mesh, {Replicate(), Shard(0)}), sizes) ==
        Kinds{StepKind::slice, StepKind::all_reduce});
  CHECK(kinds(Layout::of(mesh, {Shard(0), Replicate()}), Layout::of(mesh, {Replicate(), Shard(1)}), sizes) ==
        Kinds{StepKind::slice, StepKind::all_gather});
}

TEST_CASE("reductions come before gathers where that is fewer bytes", "[redistribution]") {
  const auto* mesh = mesh_of({2, 2});
  const auto* from = Layout::of(mesh, {Shard(0), Partial()});
  CHECK(kinds(from, Layout::of(mesh, {Replicate(), Replicate()}), {8, 8}) ==
        Kinds{StepKind::all_reduce, StepKind::all_gather});
  CHECK(kinds(from, Layout::of(mesh, {Replicate(), Shard(1)}), {8, 8}) ==
        Kinds{StepKind::reduce_scatter, StepKind::all_gather});
}

TEST_CASE("outer cuts wait for inner ones", "[redistribution]") {
  const auto* mesh = mesh_of({2, 2});
  const auto* both = Layout::of(mesh, {Shard(0), Shard(0)});
  // Small: latency decides, so gather and cut again. Large: parking one cut on columns moves fewer bytes.
  CHECK(kinds(both, Layout::of(mesh, {Replicate(), Shard(0)}), {8, 8}) ==
        Kinds{StepKind::all_gather, StepKind::all_gather, StepKind::slice});
  CHECK(kinds(both, Layout::of(mesh, {Replicate(), Shard(0)}), {4096, 4096}) ==
        Kinds{StepKind::all_to_all, StepKind::all_gather, StepKind::all_to_all});
  CHECK(kinds(both, Layout::of(mesh, {Shard(0), Replicate()}), {8, 8}) == Kinds{StepKind::all_gather});
  const auto* turned = Layout::of(mesh, {Shard(0), Shard(0)}, {1, 0});
  CHECK(kinds(turned, Layout::of(mesh, {Replicate(), Shard(0)}), {8, 8}) == Kinds{StepKind::all_gather});
  CHECK(kinds(both, turned, {8, 8}).size() == 4);
}

TEST_CASE("unlike reductions happen from the last mesh dimension to the first", "[redistribution]") {
  const auto* mesh = mesh_of({2, 3});
  const auto order_of = [mesh](Placement first, Placement second) {
    const auto plan =
        plan_redistribution(Layout::of(mesh, {first, second}), Layout::of(mesh, {Replicate(), Replicate()}),
                            Numbers{4}, element_size);
    Order order;
    for (const auto& step : plan.steps) order.push_back(step.mesh_dim);
    return order;
  };
  CHECK(order_of(Partial(), Partial(ReduceOp::max)) == Order{1, 0});
  CHECK(order_of(Partial(ReduceOp::max), Partial()) == Order{1, 0});
  CHECK(order_of(Partial(ReduceOp::avg), Partial()).size() == 2);
  // A pending sum that stays is moved only if it stands in the way.
  CHECK(kinds(Layout::of(mesh, {Partial(ReduceOp::max), Partial()}),
              Layout::of(mesh, {Replicate(), Partial()}),
              {4}) == Kinds{StepKind::all_reduce, StepKind::all_reduce, StepKind::to_partial});
  CHECK(kinds(Layout::of(mesh, {Partial(), Partial()}), Layout::of(mesh, {Replicate(), Partial()}), {4}) ==
        Kinds{StepKind::all_reduce});
}

TEST_CASE("mesh dimensions of size 1 are free, whatever the order", "[redistribution]") {
  const auto* mesh = mesh_of({1, 2});
  const auto cost = [mesh](Placements from, Placements to) {
    return plan_redistribution(Layout::of(mesh, from), Layout::of(mesh, to), Numbers{8, 8}, element_size)
        .cost;
  };
  CHECK(cost({Partial(), Shard(0)}, {Replicate(), Shard(0)}) == 0);
  CHECK(cost({Shard(0), Shard(0)}, {Replicate(), Shard(0)}) == 0);
  CHECK(cost({Partial(), Shard(0)}, {Shard(0), Shard(0)}) == 0);
  CHECK(cost({Shard(1), Shard(0)}, {Partial(ReduceOp::max), Shard(0)}) == 0);
  CHECK(cost({Shard(0), Replicate()}, {Interleaved(0, {5, 3}), Shard(0)}) == 0);
}

TEST_CASE("K17: two mesh dimensions on one tensor dimension, uneven", "[redistribution]") {
  const auto* mesh = mesh_of({2, 3});
  for (std::int64_t n = 0; n <= 13; ++n) {
    simulator::Tensor tensor(mesh, {n});
    for (const auto& order : {Order{0, 1}, Order{1, 0}}) {
      const auto* both = Layout::of(mesh, {Shard(0), Shard(0)}, order);
      for (const auto* other : simulator::all_layouts(mesh, {Replicate(), Shard(0), Partial()})) {
        check_plan(tensor, both, other, {n});
        check_plan(tensor, other, both, {n});
      }
    }
  }
}

TEST_CASE("what cannot be planned is refused", "[redistribution]") {
  const auto* mesh = mesh_of({2});
  const auto* rows = Layout::of(mesh, {Shard(0)});
  const auto* columns = Layout::of(mesh, {Shard(1)});
  CHECK_THROWS_AS(plan_redistribution(rows, columns, Numbers{4}, element_size), PlacementError);
  CHECK_THROWS_AS(
      plan_redistribution(rows, Layout::of(mesh, {Interleaved(0, {1, 2})}), Numbers{4}, element_size),
      PlacementError);
  CHECK_THROWS_AS(plan_redistribution(rows, Layout::of(mesh_of({3}), {Shard(0)}), Numbers{4}, element_size),
                  MeshError);
}

TEST_CASE("the simulator sees faults", "[redistribution]") {
  const auto* mesh = mesh_of({2, 3});
  const auto* from = Layout::of(mesh, {Shard(0), Partial()});
  const auto* to = Layout::of(mesh, {Replicate(), Shard(0)});
  const auto good = plan_redistribution(from, to, Numbers{7}, element_size);
  simulator::Tensor tensor(mesh, {7});
  REQUIRE_FALSE(tensor.run(from, to, good, element_size).has_value());

  auto wrong_bytes = good;
  ++wrong_bytes.steps.front().bytes;
  CHECK(tensor.run(from, to, wrong_bytes, element_size).has_value());
  auto incomplete = good;
  incomplete.steps.pop_back();
  CHECK(tensor.run(from, to, incomplete, element_size).has_value());
  auto wrong_kind = good;
  for (auto& step : wrong_kind.steps) {
    if (step.kind == StepKind::all_reduce) step.kind = StepKind::reduce_scatter;
  }
  CHECK(tensor.run(from, to, wrong_kind, element_size).has_value());
  // Takes an outer cut away under an inner one.
  const auto* both = Layout::of(mesh, {Shard(0), Shard(0)});
  const auto* inner = Layout::of(mesh, {Replicate(), Shard(0)});
  RedistributionPlan out_of_order;
  out_of_order.steps.push_back({StepKind::all_gather, 0, both, inner, 0});
  CHECK(tensor.run(both, inner, out_of_order, element_size).has_value());
}

}  // namespace
}  // namespace dtensor
