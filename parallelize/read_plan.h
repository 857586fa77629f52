// A plan's text as far as it can be read, so that a check tells what is wrong with the rest of it too.
#pragma once

#include "parallelize/plan.h"
#include "parallelize/plan_fault.h"

#include <string>
#include <vector>

namespace dtensor::detail {

struct ReadPlan {
  ParallelPlan plan;  // with every rule, so that numbers agree; sections that cannot be read are absent
  std::vector<bool> broken;  // per rule: its style is not to be looked at
  bool readable = true;      // false: no rules could be read, only `faults` counts
  std::vector<PlanFault> faults;
};

// `hugging_face`: the text is a tp_plan, else it is taken for one only if it looks like one (see
// ParallelPlan::from_json).
ReadPlan read_plan(const std::string& text, bool hugging_face = false);

// What ParallelPlan::to_json gives, unchecked; all in one line where `indent` is negative.
std::string plan_text(const ParallelPlan& plan, int indent = 2);

}  // namespace dtensor::detail
