// A model's head and its loss in one: logits never exist whole.
#pragma once

#include "parallelize/vocab_parallel_cross_entropy.h"

namespace dtensor {

struct LinearCrossEntropyOptions : CrossEntropyOptions {
  LinearCrossEntropyOptions() = default;
  explicit LinearCrossEntropyOptions(CrossEntropyOptions options, std::int64_t rows_at_a_time = 0)
      : CrossEntropyOptions(std::move(options)), chunk(rows_at_a_time) {}
  // Rows (tokens) of logits that exist at a time. 0: as many as make four million logits on this rank.
  std::int64_t chunk = 0;
};

// vocab_parallel_cross_entropy(linear(hidden, weight), target, options) over chunks of rows. `hidden` [..., h] is a
// DTensor placed anyhow; `weight` [vocabulary, h] a DTensor cut by its rows (style colwise) or whole on each mesh
// dimension; `target` [...] as there. Instead of rows x v / tp logits (and as many gradients) a rank holds those of
// one chunk; backward computes them again, a third product besides the two of a linear's backward. Cut Cross-Entropy
// (arXiv:2411.09009) and Liger Kernel do this on one device.
//
// Over the ranks that cut the vocabulary forward moves what vocab_parallel_cross_entropy moves, once for all chunks.
// Backward reduces the gradient of hidden once: all-reduced where hidden was whole, reduce-scattered where it came
// cut (by sequence; forward then gathers it, as linear would). Under autocast hidden and weight are cast, as by
// linear.
//
// Errors, before any communication: UnsupportedError for plain tensors and for a weight that is not cut by its rows;
// PlacementError for options or shapes that do not fit. IndexError for a target that is no class, on CPU.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace dtensor
