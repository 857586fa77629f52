// parallelize_module: an ordinary, already-built torch::nn::Module becomes tensor parallel by a plan.
#pragma once

#include "comm/device_mesh.h"
#include "parallelize/apply_report.h"
#include "parallelize/plan.h"
#include "parallelize/plan_check.h"

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace dtensor {

class DeferredBuild;

struct ApplyOptions {
  // Along each mesh dimension the values of this coordinate win, buffers too; nothing = every rank's own values are
  // trusted to be equal and nothing is sent.
  std::optional<int> source = 0;
  // As in ModelFacts (plan_check.h).
  std::vector<std::pair<std::string, std::int64_t>> heads = {}, kv_heads = {};
  std::optional<std::int64_t> sequence = {}, batch = {};
  // Optimizers that have stepped already: their state follows the parameters (optimizer_state.h).
  std::vector<torch::optim::Optimizer*> optimizers = {};
  // For a module that was built without memory (dtensor/deferred_build.h): each rank draws its own part.
  const DeferredBuild* deferred = nullptr;
};

// The mesh a plan asks for, over the whole world. One size of -1 is what is left.
// Errors: PlanError when the plan has no mesh; MeshError when it does not fit the world.
DeviceMesh make_mesh(const ParallelPlan& plan, World& world,
                     c10::DeviceType device_type = c10::DeviceType::CPU);

// Turns every parameter and buffer of `module` into a DTensor on the whole mesh, in place (optimizers keep their
// parameters), leaves the styles' wishes at the parameters and installs gradient synchronisation. The plan's policy
// becomes the World's; without one, plain tensors are `replicate_checked`. Errors: PlanError with all faults
// (plan_check.h), before anything changes and before any communication. Then ranks compare a hash of plan and module,
// the only communication before the change: PlanError on all of them when they differ.
ApplyReport parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                               const ApplyOptions& options = {});

// Undoes it: every parameter, gradient and buffer is a plain tensor with the whole value on every rank again, in
// place; wishes, points and gradient synchronisation are gone. Gathers one tensor after another. The state of these
// optimizers follows. Nothing to do for a module that is not parallelised.
void unparallelize(torch::nn::Module& module, const std::vector<torch::optim::Optimizer*>& optimizers = {});

}  // namespace dtensor
