// torch::autograd::Function with DTensor arguments.
//
// Function::apply decides by the static type which arguments are variables: an argument of a type derived from at::Tensor
// is none, and its gradient is lost without a word. With this header (part of <dtensor/all.h>) a DTensor is one.
#pragma once

#include "dtensor/dtensor.h"

#include <torch/csrc/autograd/custom_function.h>

namespace torch::autograd {

template <>
inline void ExtractVariables::operator()<dtensor::DTensor>(const dtensor::DTensor& tensor) {
  (*this)(static_cast<const at::Tensor&>(tensor));
}

}  // namespace torch::autograd
