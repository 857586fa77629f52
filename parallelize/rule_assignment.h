// Which rule each module takes.
#pragma once

#include "parallelize/module_description.h"
#include "parallelize/plan.h"
#include "parallelize/plan_fault.h"

#include <optional>
#include <vector>

namespace dtensor::detail {

struct RuleAssignment {
  std::vector<std::optional<std::size_t>> rule_of;   // per module
  std::vector<std::vector<std::size_t>> modules_of;  // per rule: the modules that take it
  std::vector<PlanFault> faults;                     // no_match, matched_twice
};

// Each module takes one rule: the one that matches it, or the one with "override" among several. Of several without (or
// with two) the first counts, so that the check can go on, and the others are a fault.
RuleAssignment assign_rules(const ModuleDescription& module, const ParallelPlan& plan,
                            const std::vector<bool>& broken);

}  // namespace dtensor::detail
