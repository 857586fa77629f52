// Applying wishes: the moves that a style left at a parameter.
#pragma once

#include "dtensor/meta.h"

namespace dtensor::detail {

// The wish of one family at a tensor, or nullptr.
const Wish* find_wish(const at::Tensor& tensor, WishFamily family);

// The operand beside the parameter, brought to the wish's input placements (a shared move; see shared_move.h).
at::Tensor with_input_wish(const at::Tensor& operand, const Wish* wish);
// The result, brought to the wish's output placements.
at::Tensor with_output_wish(const at::Tensor& result, const Wish* wish);

}  // namespace dtensor::detail
