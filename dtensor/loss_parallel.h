// LossParallel: a promise that losses leave the vocabulary cut.
#pragma once

namespace dtensor {

// Named after PyTorch's loss_parallel(). There, cross entropy of logits that are cut over classes gathers them unless
// it runs, with its backward, inside the context; here at::cross_entropy_loss (F::cross_entropy,
// nn::CrossEntropyLoss) and vocab_parallel_cross_entropy never gather them, inside or outside, and backward may run
// anywhere. What the scope adds is a check: while it lives, a cross entropy on this thread that would have to move
// its logits (pending ones must be reduced first: all of rows x classes) throws UnsupportedError instead. Whole
// logits are fine: nothing moves. Scopes may nest.
class LossParallel {
 public:
  LossParallel();
  ~LossParallel();
  LossParallel(const LossParallel&) = delete;
  LossParallel& operator=(const LossParallel&) = delete;

  // Whether the calling thread is inside one.
  static bool active();
};

}  // namespace dtensor
