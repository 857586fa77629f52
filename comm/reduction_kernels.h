// Element-wise reductions of several buffers, without LibTorch's dispatch. Private to comm/.
#pragma once

#include "placements/placement.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

// Whether reduce_elements knows the dtype; the others (complex, float8, ...) go by LibTorch's operators.
bool has_reduction_kernel(at::ScalarType dtype);

// Reduces `parts` (one per rank, `count` elements each) from the first to the last into `result`, which may be one of
// the parts. Each step rounds to the dtype, as LibTorch's in-place operators do; max and min hand NaN on. avg divides
// the sum by the number of parts; integers truncate. An element's bits depend on nothing but the parts' elements and
// their order, not on `count` or the position.
void reduce_elements(at::ScalarType dtype, ReduceOp op, const std::vector<const void*>& parts, std::int64_t count,
                     void* result);

}  // namespace dtensor::detail
