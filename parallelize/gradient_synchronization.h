// Gradient synchronisation: after backward(), every parameter's gradient has the parameter's placements.
#pragma once

#include "comm/device_mesh.h"
#include "parallelize/plan.h"

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace dtensor {

// Gradients of backward passes inside the scope stay pending and add up without communication; the first backward
// outside reduces the sum once.
class NoGradientSync {
 public:
  // Errors: PlanError when no plan was applied to the module.
  explicit NoGradientSync(torch::nn::Module& module);
  explicit NoGradientSync(const torch::jit::Module& module);
  ~NoGradientSync();
  NoGradientSync(const NoGradientSync&) = delete;
  NoGradientSync& operator=(const NoGradientSync&) = delete;

 private:
  explicit NoGradientSync(const void* owner);
  struct State;
  std::unique_ptr<State> state_;
};

namespace detail {
// Note [Gradient synchronisation]
// Gradients come out pending over the data-parallel dimension, under sequence parallel those of norms and rowwise biases
// over the tensor-parallel one too. A hook after each accumulation notes the parameter; at the end of the backward pass
// all pending gradients are reduced, in buckets that were fixed at apply time: the same order on all ranks. Over the
// data-parallel dimension every parameter takes part in its bucket, one without a gradient as zeros, so that a branch
// taken on one rank alone cannot make ranks disagree about the collectives; a flag per parameter tells whether anybody
// had a gradient, so that parameters used by nobody keep none.
// `owner` identifies the module.
void install_gradient_synchronization(const void* owner, const std::vector<at::Tensor>& parameters,
                                      const DeviceMesh& mesh, const std::optional<DataParallel>& data_parallel);
// The hooks stay at the parameters and do nothing any more.
void remove_gradient_synchronization(const void* owner, World& world);
}  // namespace detail

}  // namespace dtensor
