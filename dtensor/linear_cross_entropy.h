// A head and its cross entropy as one autograd node; what linear_cross_entropy is made of.
#pragma once

#include "dtensor/cross_entropy.h"

namespace dtensor::detail {

// cross_entropy(linear(hidden, weight), ...) over chunks of rows. hidden [..., h] and weight [classes, h] are DTensors;
// `weight` is cut by its rows or whole on each mesh dimension. hidden comes to Replicate where the weight is cut (its
// gradient, pending there, is brought back to hidden's placements in one reduction) and where its last dimension is; it
// stays cut in the others. `terms.class_dim` has no meaning here. `chunk`: rows at a time, 0 = chosen.
// Errors: UnsupportedError for a weight placed otherwise; as the dispatch's for plain tensors.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                const at::Tensor& class_weight, const CrossEntropyTerms& terms,
                                std::int64_t chunk);

void define_linear_cross_entropy(torch::Library& definitions);

}  // namespace dtensor::detail
