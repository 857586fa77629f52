// The path of one operator: find or make its decision, move inputs, run the local call, wrap the results.
#pragma once

#include "dtensor/operator_info.h"

#include <ATen/core/stack.h>

namespace dtensor::detail {

// Runs an operator whose arguments (some of them DTensors) are on top of the stack; leaves its results there. Below
// autograd. Errors: UnsupportedError, MeshError, CommError; on all ranks alike and before the first collective, but for
// CommError.
void dispatch(const OperatorInfo& info, torch::jit::Stack& stack);

// For overrides: runs one operator by its rule and returns its first result.
template <typename... Arguments>
at::Tensor dispatch_call(const OperatorInfo& info, Arguments&&... arguments) {
  torch::jit::Stack stack;
  stack.reserve(sizeof...(arguments));
  (stack.emplace_back(std::forward<Arguments>(arguments)), ...);
  dispatch(info, stack);
  return stack[0].toTensor();
}

}  // namespace dtensor::detail
