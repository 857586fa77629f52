#include "brute_force.h"

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

// x[...] by index tensors, of which undefined ones stand for whole dimensions.
Sample indexed(const char* op, at::Tensor self, Tensors indices) {
  Tensors inputs = {std::move(self)};
  std::vector<bool> defined;
  for (const auto& index : indices) {
    defined.push_back(index.defined());
    if (index.defined()) inputs.push_back(index);
  }
  return program(op, std::move(inputs),
                 [op, defined](const Tensors& x) {
                   Indices list;
                   std::size_t next = 1;
                   for (const bool there : defined)
                     list.push_back(there ? std::optional<at::Tensor>(x[next++]) : std::nullopt);
                   return call_operator(op, {x[0], list});
                 })
      .reaches({op})
      .at_most(32);
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto gather = [&](Numbers shape, Numbers index, std::int64_t dim) {
    const auto size = shape[dim < 0 ? shape.size() - 1 : static_cast<std::size_t>(dim)];
    all.push_back(
        sample("aten::gather", {values(std::move(shape)), dim, integers(std::move(index), 0, size)}));
    all.back().at_most(32);
  };
  gather({5, 3}, {5, 1}, 1);
  gather({5, 3}, {5, 4}, 1);
  gather({5, 3}, {2, 3}, 0);
  gather({4, 7}, {3, 2}, -1);
  gather({1, 4}, {1, 2}, 1);
  gather({7}, {3}, 0);
  gather({2}, {5}, 0);
  gather({2, 4, 3}, {2, 0, 3}, 1);
  all.push_back(sample("aten::gather", {booleans({5, 7}), 1, integers({5, 2}, 0, 7)}).at_most(32));
  for (const std::int64_t dim : {0, -1})
    for (const auto& shape : {Numbers{5, 3}, Numbers{1, 4}, Numbers{2, 4, 7}}) {
      const auto size = shape[dim == 0 ? 0 : shape.size() - 1];
      for (const std::int64_t count : {2, 6})
        all.push_back(
            sample("aten::index_select", {values(shape), dim, integers({count}, 0, size)}).at_most(24));
      // Its gradient is an index_add_ of nothing, which LibTorch's Meta kernel refuses.
      all.push_back(sample("aten::index_select", {values(shape), dim, integers({0}, 0, size)})
                        .without_gradient()
                        .at_most(12));
      all.push_back(sample("aten::index_select", {values(shape), dim, integers({}, 0, size)}).at_most(12));
    }
  const auto number = [](Numbers sizes, std::int64_t size) {
    return integers(std::move(sizes), -size, size);
  };
  const auto none = at::Tensor();
  for (const char* op : {"aten::index.Tensor", "aten::_unsafe_index.Tensor"}) {
    all.push_back(indexed(op, values({5, 3}), {number({2}, 5)}));
    all.push_back(indexed(op, values({5, 3}), {number({4, 2}, 5)}));
    all.push_back(indexed(op, values({1, 7, 2}), {none, number({3}, 7)}));
    all.push_back(indexed(op, values({4, 5, 3}), {number({3, 1}, 4), number({2}, 5)}));
    all.push_back(indexed(op, values({4, 2, 5}), {number({3}, 4), none, number({3}, 5)}));
    all.push_back(indexed(op, values({4, 5}), {number({}, 4)}));
  }
  all.push_back(
      indexed("aten::index.Tensor", integers({4, 3, 5}, 0, 9), {none, number({2}, 3), number({}, 5)}));
  all.push_back(program("index by a mask", {values({5, 3}), booleans({5})},
                        [](const Tensors& x) { return Tensors{at::index(x[0], {x[1]})}; }));
  all.push_back(sample("aten::take", {values({5, 3}), integers({4, 2}, -15, 15)}).at_most(24));
  const auto bounds = at::arange(4, at::kDouble) - 2;
  all.push_back(sample("aten::bucketize.Tensor", {values({5, 3}), bounds}).at_most(24));
  all.push_back(sample("aten::searchsorted.Tensor", {bounds, values({5, 3})}).at_most(24));
  const auto sequence = std::get<0>(values({5, 4}).sort(1));
  all.push_back(sample("aten::searchsorted.Tensor", {sequence, values({5, 3})}).at_most(24));
  all.push_back(sample("aten::searchsorted.Tensor", {sequence, values({5, 3}), true, true, c10::IValue(),
                                                     at::arange(4).expand({5, 4}).contiguous()})
                    .at_most(24));
  all.push_back(
      sample("aten::isin.Tensor_Tensor", {integers({5, 3}, 0, 9), integers({3}, 0, 9)}).at_most(24));
  all.push_back(
      sample("aten::isin.Tensor_Tensor", {integers({1, 4}, 0, 9), integers({40}, 0, 9)}).at_most(24));
  all.push_back(sample("aten::isin.Tensor_Scalar", {integers({5, 3}, 0, 4), 2}));
  const auto offsets = at::tensor({0, 2, 2}, at::kLong);
  for (const std::int64_t mode : {0, 1, 2}) {
    const auto places = integers({5}, 0, 6);
    all.push_back(sample("aten::_embedding_bag", {values({6, 4}), places, offsets, false, mode})
                      .reaches({"aten::_embedding_bag_backward"})
                      .at_most(16));
    all.push_back(sample("aten::_embedding_bag_forward_only", {values({6, 3}), places, offsets, false, mode})
                      .without_gradient()
                      .at_most(16));
    if (mode != 0) continue;
    all.push_back(
        sample("aten::_embedding_bag", {values({6, 4}), places, offsets, false, mode, false, values({5})})
            .reaches({"aten::_embedding_bag_backward", "aten::_embedding_bag_per_sample_weights_backward"})
            .at_most(16));
  }
  return all;
}

// Catch2's assertions are not for several threads: run_ranks rethrows this.
void require(bool holds) {
  if (!holds) throw std::runtime_error("a rank found otherwise");
}

std::string placed_as(const at::Tensor& tensor) { return to_string(DTensor(tensor).placements()); }

TEST_CASE("reading from a cut dimension moves nothing") {
  const auto full = values({6, 8}), places = integers({6, 1}, 0, 8);
  run_ranks(2, [&](int) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(1)});
    const at::Tensor index = distribute_tensor(places, mesh, {Replicate()});
    require(placed_as(at::gather(x, 1, index)) == "[Partial(sum)]");
    require(placed_as(at::gather(x.t(), 1, index.flatten().repeat({8, 1}) % 6)) == "[Shard(0)]");
    require(placed_as(x.index_select(0, index.flatten() % 6)) == "[Shard(1)]");
    require(placed_as(at::index(x, {std::nullopt, index.flatten()})) == "[Partial(sum)]");
  });
}

const SampleFile file("indexing", samples);
TEST_CASE("indexing") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
