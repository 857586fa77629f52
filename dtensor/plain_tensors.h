// Plain tensors that meet DTensors (DESIGN: plain tensors).
#pragma once

#include "dtensor/call.h"

namespace dtensor::detail {

// Whether the plain operands of a call may enter as replicated values.
// Errors: UnsupportedError with the remedy, by policy; DesyncError when ranks hold different values under
// `replicate_checked` (compared over the mesh at the first use of each operator, argument and shape).
void admit_plain_operands(const Call& call);

}  // namespace dtensor::detail
