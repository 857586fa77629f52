#include "dtensor/override.h"

#include <ATen/Functions.h>

namespace dtensor::detail::override_ {

at::Tensor value_selecting_reduction_backward(const at::Tensor& gradient, std::int64_t dim,
                                              const at::Tensor& indices, c10::SymIntArrayRef sizes,
                                              bool keepdim) {
  auto values = gradient, places = indices;
  if (!keepdim && !sizes.empty()) {
    values = gradient.unsqueeze(dim);
    places = indices.unsqueeze(dim);
  }
  return values.new_zeros_symint(sizes).scatter(dim, places, values);
}

at::Tensor cummaxmin_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& indices,
                              std::int64_t dim) {
  if (input.numel() == 0) return input;
  return gradient.new_zeros_symint(input.sym_sizes()).scatter_add(dim, indices, gradient);
}

}  // namespace dtensor::detail::override_
