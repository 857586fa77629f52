// The operators dtensor::linear_cross_entropy_rows and dtensor::linear_cross_entropy_gradient on plain tensors that are
// whole; their rules are in linear_cross_entropy.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace dtensor::detail {

// hidden [..., h], weight [classes, h], a target for each row, w [classes] or none -> four numbers per row, in the
// target's shape and float at least: loss, weight, maximum, slope (see class_loss.h). At most `chunk` rows of logits
// exist at a time (0: as many as make four million logits).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_rows(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
    const std::optional<at::Tensor>& class_weight, std::int64_t ignore_index, double smoothing, double z_loss,
    std::int64_t classes, std::int64_t chunk);

// -> the gradients of hidden and weight, those that are wanted, given that of the losses (of each row, or one for all).
std::tuple<at::Tensor, at::Tensor> linear_cross_entropy_gradient(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
    const std::optional<at::Tensor>& class_weight, const at::Tensor& coefficient, const at::Tensor& maximum,
    const at::Tensor& slope, std::int64_t ignore_index, double smoothing, double z_loss, std::int64_t classes,
    std::int64_t chunk, bool wants_hidden, bool wants_weight);

}  // namespace dtensor::detail
