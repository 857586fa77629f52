// Reductions of tensors that one rank holds: the arithmetic of backends that move whole pieces. Private to
// comm/.
#pragma once

#include "placements/placement.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

// The reduction of `parts` (one per rank, equal sizes) from the first to the last, as a new tensor: the same
// bits wherever it is computed. avg: the sum divided by the number of parts; integers truncate.
at::Tensor reduce_in_order(const std::vector<at::Tensor>& parts, ReduceOp op);

// The same of plain memory: `count` elements a part, into `result`, which may be one of the parts. Same bits as above.
void reduce_buffers(at::ScalarType dtype, ReduceOp op, const std::vector<const void*>& parts, std::int64_t count,
                    void* result);

// Turns a sum over `count` ranks into the average, in place.
void divide_by_count(at::Tensor& sum, std::int64_t count);

// Copies the elements of a contiguous tensor into another one of the same number of elements and dtype; the
// shapes may differ. Works below autograd and dispatch modes.
void copy_elements(const at::Tensor& from, const at::Tensor& to);

}  // namespace dtensor::detail
