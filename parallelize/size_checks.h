// Sizes of one module against the mesh: heads, vocabulary, features, packed parts.
#pragma once

#include "parallelize/fault_collector.h"
#include "parallelize/plan_check.h"

#include <functional>
#include <string>

namespace dtensor::detail {

struct SizeCheck {
  const ParallelPlan& plan;
  const ModuleDescription& description;
  const ModelFacts& facts;
  std::int64_t ranks;  // along the tensor-parallel dimension
};

// Requires that the rule's style suits the module. Returns whether the module can be placed so (packed parts add up).
bool check_sizes(const SizeCheck& check, std::size_t rule, const DescribedModule& module,
                 FaultCollector& faults);

// The key-value heads that a Linear holds by its rule or by what the program knows; 0: not said.
std::int64_t kv_heads_of(const Style& style, const ModelFacts& facts, const DescribedModule& module);

// Whether every rank is to hold the whole weight, because ranks do not divide its key-value heads (share_kv_heads).
bool shares_kv_heads(const SizeCheck& check, std::size_t rule, const DescribedModule& module);

// "2 or 4 ranks": the numbers of ranks nearest to `ranks`, below and above, for which `holds`.
std::string nearest_ranks(std::int64_t ranks, std::int64_t largest,
                          const std::function<bool(std::int64_t)>& holds);

}  // namespace dtensor::detail
