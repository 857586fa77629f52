#include "brute_force.h"

#include "comm/counters.h"
#include "comm/run_ranks.h"
#include "dtensor/dtensor.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <stdexcept>

namespace dtensor::brute {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// A permutation, so that nothing is written twice: its first `count` numbers.
at::Tensor distinct(std::int64_t size, std::int64_t count) {
  return values({size}).argsort().slice(0, 0, count).contiguous();
}
// Index tensors whose numbers differ along `dim`.
at::Tensor distinct_along(Numbers sizes, std::int64_t dim, std::int64_t size) {
  auto all = sizes;
  all[static_cast<std::size_t>(dim)] = size;
  return values(all).argsort(dim).slice(dim, 0, sizes[static_cast<std::size_t>(dim)]).contiguous();
}

// index_put and its kin; undefined indices stand for whole dimensions.
Sample put(const std::string& op, Numbers shape, Tensors indices, Numbers source, bool accumulate) {
  Tensors inputs = {values(std::move(shape)), values(std::move(source))};
  std::vector<bool> defined;
  for (const auto& index : indices) {
    defined.push_back(index.defined());
    if (index.defined()) inputs.push_back(index);
  }
  return program(op, std::move(inputs),
                 [op, defined, accumulate](const Tensors& x) {
                   Indices list;
                   std::size_t next = 2;
                   for (const bool there : defined)
                     list.push_back(there ? std::optional<at::Tensor>(x[next++]) : std::nullopt);
                   const bool in_place = op == "aten::index_put_";
                   return call_operator(op, {in_place ? x[0].clone() : x[0], list, x[1], accumulate});
                 })
      .reaches({op})
      .at_most(24);
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  struct Shape {
    Numbers self, index, source;
    std::int64_t dim;
  };
  const std::vector<Shape> shapes = {{{5, 3}, {2, 3}, {2, 3}, 0},          {{5, 3}, {5, 2}, {5, 2}, 1},
                                     {{4, 7}, {3, 2}, {4, 3}, 1},          {{1, 4}, {1, 2}, {1, 3}, 1},
                                     {{2, 4, 3}, {2, 2, 3}, {2, 2, 3}, 1}, {{3, 2}, {0, 2}, {0, 2}, 0}};
  for (const auto& [self, index, source, dim] : shapes) {
    const auto places = distinct_along(index, dim, self[static_cast<std::size_t>(dim)]);
    const auto often = integers(index, 0, self[static_cast<std::size_t>(dim)]);
    const auto x = values(self), y = values(source);
    const bool as_far = index == source;  // else plain gradients of src have the index's shape
    const auto add = [&](const char* op, std::vector<c10::IValue> arguments) -> Sample& {
      all.push_back(sample(op, std::move(arguments)).at_most(24));
      all.back().gradient = as_far;
      return all.back();
    };
    add("aten::scatter.src", {x, dim, places, y});
    add("aten::scatter_.src", {x, dim, places, y});
    add("aten::scatter.value", {x, dim, often, 2.5});
    add("aten::scatter.value", {x, dim, often, 0});
    add("aten::scatter.reduce", {x, dim, often, y, "add"}).without_gradient();
    add("aten::scatter.reduce", {x, dim, often, y, "multiply"}).without_gradient();
    add("aten::scatter.value_reduce", {x, dim, often, 2, "multiply"}).without_gradient();
    add("aten::scatter_add", {x, dim, often, y});
    add("aten::scatter_add_", {x, dim, often, y});
    for (const char* reduce : {"sum", "prod", "mean", "amax", "amin"})
      for (const bool include_self : {true, false}) {
        add("aten::scatter_reduce.two", {x, dim, often, y, reduce, include_self}).at_most(10);
        add("aten::scatter_reduce.two",
            {integers(self, -9, 9), dim, often, integers(source, -9, 9), reduce, include_self})
            .at_most(6);
      }
  }
  for (const auto& [shape, dim] : std::vector<std::pair<Numbers, std::int64_t>>{
           {{5, 3}, 0}, {{5, 3}, -1}, {{1, 4}, 1}, {{2, 7, 3}, 1}}) {
    const auto size = shape[dim < 0 ? shape.size() - 1 : static_cast<std::size_t>(dim)];
    auto source = shape;
    source[dim < 0 ? shape.size() - 1 : static_cast<std::size_t>(dim)] = 2;
    const auto x = values(shape), y = values(source);
    const auto places = distinct(size, 2), often = integers({2}, 0, size);
    const auto add = [&](const char* op, std::vector<c10::IValue> arguments) -> Sample& {
      all.push_back(sample(op, std::move(arguments)).at_most(24));
      return all.back();
    };
    add("aten::index_add", {x, dim, often, y, 2});
    add("aten::index_add_", {x, dim, often, y});
    add("aten::index_copy", {x, dim, places, y});
    add("aten::index_copy_", {x, dim, places, y});
    add("aten::index_fill.int_Scalar", {x, dim, places - size, 1.5});
    add("aten::index_fill.int_Scalar", {x, dim, often, 0});
    add("aten::index_fill.int_Tensor", {x, dim, places, values({})});
    add("aten::index_fill_.int_Scalar", {x, dim, often, 3}).refuses_pending_self();
    add("aten::index_fill.int_Scalar", {x, dim, integers({}, 0, size), 3});
    for (const char* reduce : {"prod", "mean", "amax", "amin"})
      for (const bool include_self : {true, false})
        add("aten::index_reduce", {x, dim, often, y, reduce, include_self}).at_most(12);
  }
  const auto none = at::Tensor();
  for (const char* op : {"aten::index_put", "aten::index_put_", "aten::_unsafe_index_put"})
    for (const bool accumulate : {false, true}) {
      const auto first = all.size();
      all.push_back(put(op, {5, 3}, {distinct(5, 2) - 5}, {2, 3}, accumulate));
      all.push_back(put(op, {5, 3}, {distinct(5, 4).view({2, 2})}, {3}, accumulate));
      all.push_back(put(op, {1, 7, 2}, {none, distinct(7, 3)}, {1, 3, 1}, accumulate));
      all.push_back(put(op, {4, 5, 3}, {distinct(4, 3).view({3, 1}), distinct(5, 2)}, {3, 2, 3}, accumulate));
      all.push_back(put(op, {4, 2, 5}, {distinct(4, 3), none, distinct(5, 3)}, {3, 2}, accumulate));
      all.push_back(put(op, {4, 5}, {integers({}, 0, 4)}, {}, accumulate));
      if (std::string(op) != "aten::_unsafe_index_put") {  // which takes no masks
        all.push_back(put(op, {5, 3}, {booleans({5, 3})}, {}, accumulate));
        all.push_back(put(op, {4, 5, 2}, {none, booleans({5})}, {1}, accumulate));
      }
      if (std::string(op) == "aten::index_put_")  // a plain tensor cannot be written to
        for (auto i = first; i < all.size(); ++i) all[i].only_dtensors();
    }
  all.push_back(
      program("the body of index_put", {values({5, 3}), distinct(5, 2), values({2, 3})},
              [](const Tensors& x) {
                return call_operator("aten::_index_put_impl", {x[0], Indices({x[1]}), x[2], false, false});
              })
          .reaches({"aten::_index_put_impl"})
          .without_gradient()
          .at_most(24));
  return all;
}

// Catch2's assertions are not for several threads: run_ranks rethrows this.
void require(bool holds) {
  if (!holds) throw std::runtime_error("a rank found otherwise");
}

std::string placed_as(const at::Tensor& tensor) { return to_string(DTensor(tensor).placements()); }

TEST_CASE("what is written to stays where it is") {
  const auto full = values({6, 8}), full_rows = values({3, 8}), places = integers({3}, 0, 6);
  run_ranks(2, [&](int) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor index = distribute_tensor(places, mesh, {Replicate()});
    const at::Tensor rows = distribute_tensor(full_rows, mesh, {Replicate()});
    const std::string cut = "[Shard(0)]";
    require(placed_as(x.index_add(0, index, rows)) == cut);
    require(placed_as(x.index_put({index}, rows)) == cut);
    require(placed_as(x.scatter_add(0, index.unsqueeze(1).expand({3, 8}), rows)) == cut);
    const CollectiveCounter counter;
    x.index_copy_(0, index, rows);
    x.index_put_({index}, rows, true);
    require(counter.total() == 0);
  });
}

const SampleFile file("scatters", samples);
TEST_CASE("writing by index") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
