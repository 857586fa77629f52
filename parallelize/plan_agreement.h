// Whether all ranks of a mesh hold the same plan and the same module.
#pragma once

#include "comm/device_mesh.h"
#include "parallelize/module_description.h"
#include "parallelize/plan.h"

namespace dtensor::detail {

// Compares a hash over the mesh (one small all-gather). Errors: PlanError on every rank when some differ, with the
// ranks and the first line in which they do.
void check_agreement(const ParallelPlan& plan, const ModuleDescription& module, const DeviceMesh& mesh);

}  // namespace dtensor::detail
