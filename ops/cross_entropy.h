// The operators dtensor::cross_entropy_rows and dtensor::cross_entropy_gradient on plain tensors that are whole: what
// they mean, and what tells LibTorch the shapes of their results. Their rules are in cross_entropy.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace dtensor::detail {

// logits with classes in `class_dim`, a target for each row, w [classes] or none -> four numbers per row, in the
// target's shape and float at least: loss, weight, maximum, slope (see class_loss.h).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows(
    const at::Tensor& logits, const at::Tensor& target, const std::optional<at::Tensor>& weight,
    std::int64_t class_dim, std::int64_t ignore_index, double smoothing, double z_loss, std::int64_t classes);

// -> the gradient of the logits, given that of the losses (of each row, or one for all).
at::Tensor cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& target,
                                  const std::optional<at::Tensor>& weight, const at::Tensor& coefficient,
                                  const at::Tensor& maximum, const at::Tensor& slope, std::int64_t class_dim,
                                  std::int64_t ignore_index, double smoothing, double z_loss,
                                  std::int64_t classes);

}  // namespace dtensor::detail
