// clip_grad_norm_ over distributed gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor {

// Scales the gradients of `parameters` so that their total norm is at most `max_norm`, and returns the norm before
// (0-dimensional, plain, equal on all ranks, no host synchronisation). As torch::nn::utils::clip_grad_norm_, but every
// element counts once whatever the placements; gradients may live on different meshes, be pending, or be plain.
// Errors: PlacementError for a norm type below or equal to 0.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0);

}  // namespace dtensor
