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

// "2 or 4 ranks": the numbers of ranks nearest to `ranks`, below and above, for which `holds`.
std::string nearest_ranks(std::int64_t ranks, std::int64_t largest,
                          const std::function<bool(std::int64_t)>& holds);

}  // namespace dtensor::detail
