// Cross entropy of logits that are cut over the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace dtensor {

// How label smoothing e spreads probability over K classes.
enum class LabelSmoothing : std::uint8_t {
  pytorch,  // e / K to every class, the target among them: at::cross_entropy_loss
  megatron,  // e / (K - 1) to every class but the target: Megatron-LM, core/tensor_parallel/cross_entropy.py. It is
             // PyTorch's with e K / (K - 1). K is the whole vocabulary, not this rank's part
};
enum class LossReduction : std::uint8_t { none, mean, sum };

struct CrossEntropyOptions {
  double label_smoothing = 0;  // in [0, 1)
  LabelSmoothing smoothing = LabelSmoothing::pytorch;
  std::int64_t ignore_index = -100;  // rows with this target have loss 0, no gradient, and do not count
  at::Tensor weight = {};            // [number of classes]: a row counts as much as its target's weight says
  LossReduction reduction = LossReduction::mean;  // mean: over all rows of all ranks, by their weights
  // Adds z_loss * logsumexp(row)^2 to each row's loss, times the row's weight: PaLM (arXiv:2204.02311), section 5.
  double z_loss = 0;
  // How many of the logits are classes: the rest is padding that rounds the vocabulary up. Padding has no
  // probability, whatever its logits, and no gradient. Unset: all.
  std::optional<std::int64_t> classes = {};
};

// The loss of `logits` [..., vocabulary], as [n, v], [batch, sequence, v] or [sequence, batch, v], and `target`
// [...], a class per row (a DTensor, or a plain tensor where the policy admits those). The logits are a DTensor,
// placed anyhow: cut over the vocabulary (evenly or not, some ranks with no class at all), over rows, over both, or
// whole. It is what at::cross_entropy_loss gives on one device for the same options, in float for logits of 16 bits.
//
// One autograd node. With rows x v / tp logits per rank, forward needs memory for a few numbers per row, backward
// that and the gradient. Over the ranks that cut the vocabulary forward reduces twice, in all 3 numbers per row (and
// one more each for smoothing and weights), backward never. The result is pending over mesh dimensions that cut rows
// (a sum or mean), or placed as the rows are.
//
// Errors, before any communication: UnsupportedError for plain logits (a rank cannot tell a part from the whole) or
// pending ones inside LossParallel; PlacementError for options or shapes that do not fit. IndexError for a target
// that is no class, on CPU.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        const CrossEntropyOptions& options = {});

}  // namespace dtensor
