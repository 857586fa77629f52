// Gathers faults; the same fault of many modules under one rule is told once.
#pragma once

#include "parallelize/module_description.h"
#include "parallelize/plan.h"
#include "parallelize/plan_fault.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

class FaultCollector {
 public:
  explicit FaultCollector(const ParallelPlan& plan) : plan_(plan) {}

  // The tensor-parallel mesh dimensions, as faults name them.
  std::string tensor_parallel_dims() const { return fmt::format("{}", fmt::join(plan_.tensor_parallel_dims, ", ")); }

  // What is common to all faults of a rule and a module; the caller fills in the rest.
  PlanFault about(FaultKind kind, std::optional<std::size_t> rule, const DescribedModule* module,
                  const ModuleDescription& description) const {
    PlanFault fault;
    fault.kind = kind;
    fault.rule = rule;
    if (rule) fault.pattern = plan_.rules[*rule].match;
    if (module) {
      fault.module = module->path;
      fault.module_type = module->type;
      if (module->weight) fault.shape = description.tensors[*module->weight].sizes;
    }
    return fault;
  }

  void add(PlanFault fault, std::string problem) {
    for (auto& [known, text] : gathered_) {
      if (known.kind != fault.kind || known.rule != fault.rule || fault.module.empty()) continue;
      ++known.more_modules;
      return;
    }
    gathered_.emplace_back(std::move(fault), std::move(problem));
  }

  void take(std::vector<PlanFault>& faults) {
    for (auto& [fault, problem] : gathered_) faults.push_back(worded(std::move(fault), problem));
    gathered_.clear();
  }

 private:
  const ParallelPlan& plan_;
  std::vector<std::pair<PlanFault, std::string>> gathered_;  // with the problem
};

}  // namespace dtensor::detail
