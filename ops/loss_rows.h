// Numbers per row beside a tensor whose rows may be cut.
#pragma once

#include "ops/kernel_context.h"

namespace dtensor::detail {

// A number per row of operand 0 (its dimensions without `class_dim`), cut as those rows are, or whole: then this rank's
// rows are taken. A number for all rows is returned as it is.
at::Tensor of_local_rows(const KernelContext& context, std::size_t operand, at::Tensor tensor,
                         std::int64_t class_dim);

}  // namespace dtensor::detail
