// Cross entropy on DTensors as one autograd node: what at::cross_entropy_loss becomes where classes are cut, and what
// vocab_parallel_cross_entropy is made of.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>

namespace dtensor::detail {

struct CrossEntropyTerms {
  std::int64_t class_dim = 0;  // of the logits, not negative
  std::int64_t classes = 0;    // logits of classes from here on are padding
  std::int64_t ignore_index = -100;
  std::int64_t reduction = 1;  // at::Reduction
  double smoothing = 0;        // by PyTorch's definition
  double z_loss = 0;
  friend bool operator==(const CrossEntropyTerms&, const CrossEntropyTerms&) = default;
};

// The loss of logits (a DTensor, placed anyhow) in float at least: a number, pending where rows are cut, or one per
// row. `target`: a class per row, `weight`: a number for each of `classes`, or undefined. Logits do not move unless
// pending; where classes are cut, two small all-reduces complete the rows' losses. Backward communicates nothing of
// the rows' size, keeps nothing of the logits' size besides them, and is differentiable itself. Errors:
// UnsupportedError inside LossParallel where the logits would move; as the dispatch's for plain tensors.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight,
                         const CrossEntropyTerms& terms);

// Errors: UnsupportedError inside LossParallel where a loss would have to move these logits.
void check_loss_parallel(const at::Tensor& logits);

// Losses of rows to the loss: themselves, their sum, or the sum divided by that of the weights.
struct ReducedLoss {
  at::Tensor loss;
  at::Tensor total;  // of the weights, the same on every rank; undefined unless the loss is a mean
};
ReducedLoss reduce_rows(const at::Tensor& losses, const at::Tensor& weights, std::int64_t reduction);
// The gradient of the rows' losses, or of each of them alike, from that of the loss: not pending.
at::Tensor row_coefficient(const at::Tensor& gradient, const at::Tensor& total);

// `target` brought to the placements of the rows of `logits`; a plain one as it is.
at::Tensor placed_as_rows(const at::Tensor& target, const at::Tensor& logits, std::int64_t class_dim);

void define_cross_entropy(torch::Library& definitions);

}  // namespace dtensor::detail
