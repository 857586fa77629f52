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
// over the tensor-parallel one too. Buckets of parameters are fixed at apply time, and each is summed over the
// data-parallel dimension by one all-reduce a pass, whatever a rank's pass does, in the same order on all ranks:
//  - A bucket starts as soon as all its gradients are there and those before it have started, while the pass goes on. What
//    has not started at the end of the pass starts there; the last bucket always, as it carries how the pass went.
//  - Every parameter takes part, one without a gradient as zeros, so that a branch taken on one rank alone cannot make ranks
//    disagree about the collectives; a number per parameter, summed along, tells whether anybody had a gradient, so that
//    parameters used by nobody keep none.
//  - A gradient may be pending on another mesh dimension on some ranks and whole on others. All expect what was found on the
//    ranks in the pass before (in an all-reduce of its own in the first): a gradient that all had pending is summed pending
//    and stays so; any other is made whole first, at the end of the pass, as that may communicate.
//  - A gradient that accumulates after its bucket has started (reentrant backward, checkpoints) waits for the sum and is added
//    to it. The sum is whole on the data-parallel dimension, so it counts on the first rank only and the bucket, stale
//    on any rank, is summed once more by all.
//  - A pass that throws leaves buckets that have started. The next pass pairs with the others' however they ended: where all
//    had started a bucket, it is stale; where only some had, gradients of two passes were added, which nothing mends:
//    DesyncError on all.
//  - These all-reduces may come between others of the mesh in another order on each rank, so they use a Group of their own.
// Then what is pending on other mesh dimensions is summed, one all-reduce per bucket and set of such dimensions, and what
// is still placed otherwise than the parameter moves.
// `owner` identifies the module.
void install_gradient_synchronization(const void* owner, const std::vector<at::Tensor>& parameters,
                                      const DeviceMesh& mesh, const std::optional<DataParallel>& data_parallel);
// The hooks stay at the parameters and do nothing any more.
void remove_gradient_synchronization(const void* owner, World& world);
}  // namespace detail

}  // namespace dtensor
