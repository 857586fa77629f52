// The hook that brings a leaf's gradient to a DTensor of the leaf's mesh. Note [Plain tensors from formulas]
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

// Installs it at the leaf's first use; nothing to do for others. Some backward formulas make plain zeros and scatter
// into them, and a user's root gradient may be plain: plain -> Replicate, Replicate -> Shard (free), Partial stays.
void install_leaf_hook(const at::Tensor& tensor);

}  // namespace dtensor::detail
