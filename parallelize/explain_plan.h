// What a plan would do, told without a program, a world or a tensor.
#pragma once

#include "parallelize/apply_report.h"
#include "parallelize/module_description.h"
#include "parallelize/plan.h"

#include <cstdint>

namespace dtensor {

// The report that parallelize_module would give on `rank` of a mesh of these sizes (no -1).
// Errors: PlanError with all faults of the plan.
ApplyReport explain_plan(const ParallelPlan& plan, const ModuleDescription& module, const PlanMesh& mesh,
                         std::int64_t rank = 0);

}  // namespace dtensor
