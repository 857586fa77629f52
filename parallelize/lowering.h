// Lowering: from rules over module paths to placements and wishes of single tensors. No communication.
#pragma once

#include "comm/device_mesh.h"
#include "dtensor/wish.h"
#include "parallelize/parallelize_module.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace dtensor::detail {

// One tensor of the module with everything the plan says about it. Tied parameters are one.
struct LoweredTensor {
  at::Tensor tensor;                 // the registered one
  std::vector<at::Tensor> members;   // other handles to convert alike: typed members rebound by assignment
  std::string name;
  std::vector<std::string> aliases;
  Placements placements;             // on the whole mesh
  std::vector<Wish> wishes;
  std::string rule;
  bool buffer = false;
};

struct LoweredPlan {
  std::vector<LoweredTensor> tensors;
  std::vector<std::string> notes;
  std::vector<std::string> faults;
};

// Every parameter and buffer of the module, in registration order. Faults are collected, not thrown.
LoweredPlan lower(torch::nn::Module& module, const MeshLayout& mesh, const ParallelPlan& plan, const ApplyOptions& options);

}  // namespace dtensor::detail
