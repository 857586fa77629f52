// TorchScript modules under a plan: torch::jit::load instead of a module in C++.
#pragma once

#include "parallelize/module_description.h"
#include "parallelize/parallelize_module.h"

namespace torch::jit {
struct Module;
}

namespace dtensor {

// By the names and types that the file keeps: torch.nn.Linear, Embedding and norms are what they are in Python; others
// are known by their tensors, as in describe(torch::nn::Module).
ModuleDescription describe(const torch::jit::Module& module);

// As parallelize_module of a torch::nn::Module; parameters change in place. prepare_* reaches stock modules only.
//
// Note [TorchScript's executor]
// The graph executor may replace operators by fused kernels that read memory directly, which a DTensor has not. On CPU
// its defaults do not fuse. On GPUs turn fusion off before the first forward:
//   torch::jit::setTensorExprFuserEnabled(false);
// Frozen modules (torch.jit.freeze) have no parameters left and are refused. Errors: as there; UnsupportedError for a
// module without parameters.
ApplyReport parallelize_module(torch::jit::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                               const ApplyOptions& options = {});
void unparallelize(torch::jit::Module& module, const std::vector<torch::optim::Optimizer*>& optimizers = {});

}  // namespace dtensor
