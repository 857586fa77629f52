// Lists rules that are true but missing: placements with which the stock operator, run on each of two ranks' shards alone, gives
// shards or parts of the right result, but where ours communicates or makes a whole result. For who writes rules; hidden,
// because most of what it finds costs less to leave:
//
//   bin/ops_tests "[missing rules]"
#include "brute_force.h"
#include "combination_check.h"
#include "comm/counters.h"
#include "comm/run_ranks.h"
#include "dtensor/dtensor.h"
#include "placed_input.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <catch2/catch_test_macros.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <set>

namespace dtensor::brute {
namespace {

constexpr std::int64_t ranks = 2;
constexpr std::size_t combinations_at_most = 64;  // of a sample

// Stock operators that crash where shards do not fit each other.
const std::set<std::string> crashing = {"aten::_scaled_dot_product_flash_attention_for_cpu",
                                        "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

// Replicate, or cut in two where both ranks get something.
std::vector<Placement> cuts_of(const at::Tensor& tensor) {
  std::vector<Placement> all = {Replicate()};
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) >= ranks) all.push_back(Shard(dim));
  return all;
}
std::vector<Placements> cuts_of(const Tensors& inputs) {
  std::vector<Placements> all = {{}};
  for (const auto& input : inputs) {
    std::vector<Placements> longer;
    for (const auto& before : all)
      for (const auto& placement : cuts_of(input)) {
        longer.push_back(before);
        longer.back().push_back(placement);
      }
    all = std::move(longer);
    if (all.size() > combinations_at_most) all.resize(combinations_at_most);
  }
  return all;
}

at::Tensor shard_of(const at::Tensor& full, const Placement& placement, std::int64_t rank) {
  if (!placement.is_sharded()) return full.clone();
  return full.tensor_split(ranks, placement.dim())[static_cast<std::size_t>(rank)].contiguous();
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return a.is_floating_point() || a.is_complex() ? at::allclose(a, b, 1e-9, 1e-9, true) : at::equal(a, b);
}

// How two local results make up the whole one.
std::optional<Placement> placement_of(const at::Tensor& whole, const at::Tensor& first, const at::Tensor& second) {
  if (first.dim() == whole.dim() && second.dim() == whole.dim()) {
    for (std::int64_t dim = 0; dim < whole.dim(); ++dim)
      if (whole.size(dim) >= ranks && first.size(dim) < whole.size(dim)) {
        auto sizes = first.sizes().vec(), other = second.sizes().vec();
        sizes[static_cast<std::size_t>(dim)] = other[static_cast<std::size_t>(dim)] = 0;
        if (sizes == other && same(at::cat({first, second}, dim), whole)) return Shard(dim);
      }
  }
  if (same(first, whole) && same(second, whole)) return Replicate();
  if (first.sizes() == whole.sizes() && second.sizes() == whole.sizes() && whole.is_floating_point()) {
    if (same(first + second, whole)) return Partial();
    if (same(at::maximum(first, second), whole)) return Partial(ReduceOp::max);
    if (same(at::minimum(first, second), whole)) return Partial(ReduceOp::min);
  }
  return std::nullopt;
}

// The placements of the results where the stock operator does on shards what it does on the whole.
std::optional<Placements> true_results(const Sample& sample, const Tensors& whole, const Placements& cuts) {
  std::vector<Tensors> local;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Tensors inputs;
    const auto full = sample.inputs();
    for (std::size_t i = 0; i < full.size(); ++i) inputs.push_back(shard_of(full[i].detach(), cuts[i], rank));
    try {
      local.push_back(run_sample(sample, inputs));
    } catch (const std::exception&) {
      return std::nullopt;  // the shards do not fit each other, or an argument
    }
    if (local.back().size() != whole.size()) return std::nullopt;
  }
  Placements results;
  bool divides = false;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (!whole[i].defined() || !local[0][i].defined() || !local[1][i].defined()) return std::nullopt;
    const auto placement = placement_of(whole[i], local[0][i], local[1][i]);
    if (!placement) return std::nullopt;
    divides = divides || !placement->is_replicate();
    results.push_back(*placement);
  }
  return divides ? std::optional(results) : std::nullopt;
}

// Whether ours communicates, or makes whole results, with inputs placed so.
bool gives_up(const Sample& sample, const Placements& cuts) {
  std::atomic<bool> found = false;
  try {
    run_ranks(static_cast<int>(ranks), [&](int) {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const at::NoGradGuard no_grad;
      Tensors inputs;
      const auto full = sample.inputs();
      for (std::size_t i = 0; i < full.size(); ++i) inputs.push_back(placed(full[i].detach(), mesh, {cuts[i]}, i));
      const CollectiveCounter counter;
      const auto results = run_sample(sample, inputs);
      bool whole = true;
      for (const auto& result : results)
        whole = whole && (!result.defined() || !is_dtensor(result) || DTensor(result).layout().is_replicated());
      if (whole || counter.total() > 0) found = true;
    });
  } catch (const std::exception&) {
    return false;  // refused: another test's matter
  }
  return found;
}

TEST_CASE("rules that are true but missing", "[.][missing rules]") {
  struct Seen {
    int holds = 0, tried = 0;
  };
  std::map<std::string, std::map<std::string, Seen>> by_operator;
  for (const auto* file : SampleFile::all())
    for (const auto& sample : file->samples()) {
      if (sample.program || sample.in_place || sample.mesh_of_one || crashing.count(sample.op)) continue;
      const at::NoGradGuard no_grad;
      if (std::getenv("DTENSOR_BRUTE_FORCE")) fmt::print(stderr, "{}\n", sample.label());  // stock operators crash at times
      Tensors whole, detached;
      for (const auto& input : sample.inputs()) detached.push_back(input.detach());
      try {
        whole = run_sample(sample, detached);
      } catch (const std::exception&) {
        continue;
      }
      for (const auto& cuts : cuts_of(detached)) {
        std::string text;
        for (std::size_t i = 0; i < cuts.size(); ++i)
          text += fmt::format("{}{}-d {}", i ? ", " : "", detached[i].dim(), cuts[i].to_string());
        auto& seen = by_operator[sample.op][text];
        ++seen.tried;
        const auto results = true_results(sample, whole, cuts);
        if (!results || !gives_up(sample, cuts)) continue;
        ++seen.holds;
      }
    }
  std::size_t count = 0;
  for (const auto& [name, lines] : by_operator)
    for (const auto& [text, seen] : lines)
      if (seen.holds == seen.tried) {
        fmt::print("{}({}): {} samples\n", name, text, seen.tried);
        ++count;
      }
  fmt::print("{} placements of {} operators\n", count, by_operator.size());
  CHECK(by_operator.size() > 200);
}

}  // namespace
}  // namespace dtensor::brute
