#include "brute_force.h"

#include "comm/run_ranks.h"
#include "dtensor/dtensor.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <stdexcept>

#include <limits>

namespace dtensor::brute {
namespace {

// sort, topk, cumsum and cumprod of plain values are in reduction_test.cpp.
std::vector<Sample> samples() {
  std::vector<Sample> all;
  const double infinity = std::numeric_limits<double>::infinity();
  auto special = values({5, 3});
  special.select(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  special.select(1, 2).fill_(-infinity);
  for (const auto& shape : {Numbers{5, 3}, Numbers{1, 4}, Numbers{2, 4, 3}, Numbers{}})
    for (const std::int64_t dim : {0, -1}) {
      for (const char* op : {"aten::cummax", "aten::cummin"}) all.push_back(sample(op, {values(shape), dim}));
      for (const char* op : {"aten::cumsum", "aten::cumprod", "aten::logcumsumexp"})
        all.push_back(sample(op, {values(shape), dim}).any_pending());
      for (const bool keepdim : {false, true}) {
        for (const char* op : {"aten::median.dim", "aten::nanmedian.dim"})
          all.push_back(sample(op, {values(shape), dim, keepdim}).at_most(12));
        all.push_back(sample("aten::mode", {integers(shape, 0, 3), dim, keepdim}).at_most(12));
        all.push_back(sample("aten::kthvalue", {values(shape), 1, dim, keepdim}).at_most(12));
      }
    }
  for (const std::int64_t dim : {0, 1}) {
    for (const char* op : {"aten::cumsum", "aten::cumprod", "aten::logcumsumexp", "aten::cummax"})
      all.push_back(sample(op, {special, dim}).without_gradient());
    all.push_back(sample("aten::cumsum", {integers({5, 3}, -9, 9, at::kInt), dim}));
    all.push_back(sample("aten::cumsum", {booleans({5, 3}), dim}));
    all.push_back(sample("aten::cumprod", {integers({4, 3}, 1, 3), dim}));
    all.push_back(sample("aten::cumsum", {values({5, 3}), dim, at::kLong}).without_gradient());
    all.push_back(sample("aten::cumsum", {at::complex(values({4, 3}), values({4, 3})), dim}));
    all.push_back(sample("aten::sort", {special, dim}).without_gradient());
    all.push_back(program("scans in place", {values({5, 3})}, [dim](const Tensors& x) {
      auto sums = x[0] * 2, products = x[0] + 1;
      return Tensors{sums.cumsum_(dim), products.cumprod_(dim)};
    }));
  }
  all.push_back(sample("aten::cumsum", {values({7, 0}), 0}));
  all.push_back(sample("aten::cumsum", {values({9, 2}, -2, 2, at::kFloat), 0}));
  return all;
}

// Catch2's assertions are not for several threads: run_ranks rethrows this.
void require(bool holds) {
  if (!holds) throw std::runtime_error("a rank found otherwise");
}

std::string placed_as(const at::Tensor& tensor) { return to_string(DTensor(tensor).placements()); }

TEST_CASE("a scan along a cut dimension stays cut") {
  const auto full = values({6, 3});
  run_ranks(2, [&](int) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    require(placed_as(at::cumsum(x, 0)) == "[Shard(0)]");
    require(placed_as(at::logcumsumexp(x, 0)) == "[Shard(0)]");
    require(placed_as(std::get<0>(at::sort(x, 0))) == "[Shard(1)]");  // cut anew
  });
}

const SampleFile file("sorting", samples);
TEST_CASE("sorting and scans") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
