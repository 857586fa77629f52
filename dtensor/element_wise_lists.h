// Operators that treat the elements of their lists one by one (_foreach_, fused optimizer steps), on local tensors at once.
#pragma once

#include "dtensor/call.h"

namespace dtensor::detail {

// Whether an operator of this name does the same to each index of its lists, and to each element of the tensors there.
bool is_element_wise_on_lists(const std::string& name);

// Runs such an operator in one call on the local tensors; gradients of a fused step are moved to where their parameters lie.
// Returns false, having done nothing, where other tensors of one index lie apart from each other, are pending or have other
// sizes: the general path then takes care of it.
bool run_on_lists(Call& call);

}  // namespace dtensor::detail
