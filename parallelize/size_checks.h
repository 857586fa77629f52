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
  const std::vector<std::int64_t>& tensor_parallel_sizes;  // of the tensor-parallel mesh dimensions
  std::int64_t ranks;                                      // along all of them
};

// Requires that the rule's style suits the module. Returns whether the module can be placed so (packed parts add up).
bool check_sizes(const SizeCheck& check, std::size_t rule, const DescribedModule& module,
                 FaultCollector& faults);

// Over how many of the tensor-parallel mesh dimensions, from the first, a module's weight is cut: all, unless ranks are to
// share key-value heads (share_kv_heads) because not all of them divide those; then as many as do.
std::size_t dims_that_cut(const SizeCheck& check, std::size_t rule, const DescribedModule& module);

// "1 rank", "3 ranks".
std::string ranks_text(std::int64_t ranks);

}  // namespace dtensor::detail
