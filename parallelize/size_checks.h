// Sizes of one module against the mesh: heads, vocabulary, features, packed parts.
#pragma once

#include "parallelize/fault_collector.h"
#include "parallelize/plan_check.h"

#include <cstdint>
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

// Whether every rank is to hold the whole weight, because ranks do not divide its key-value heads (share_kv_heads).
bool shares_kv_heads(const SizeCheck& check, std::size_t rule, const DescribedModule& module);

// "1 rank", "3 ranks".
std::string ranks_text(std::int64_t ranks);

}  // namespace dtensor::detail
