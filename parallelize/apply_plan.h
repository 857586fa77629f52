// What parallelize_module and unparallelize do to a described module, of whatever frontend. Private to this library.
#pragma once

#include "parallelize/module_description.h"
#include "parallelize/parallelize_module.h"

namespace dtensor::detail {

// `owner`: what identifies the module to NoGradientSync.
ApplyReport apply_plan(const ModuleDescription& description, const void* owner, const DeviceMesh& mesh,
                       const ParallelPlan& plan, const ApplyOptions& options);

// The World of what was plain again, or nullptr where nothing was distributed.
World* undo_plan(ModuleDescription& description, const void* owner,
                 const std::vector<torch::optim::Optimizer*>& optimizers);

}  // namespace dtensor::detail
