// The dimensions that a reduction takes away, shared by the files of reductions.
#pragma once

#include "ops/rule_builder.h"

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace dtensor {

// The reduced dimensions of a call, counted from the front; all of them for None or an empty list, or without `dims`.
std::vector<bool> reduced_dims(const c10::IValue* dims, std::int64_t ndim);
// The same as a list, in rising order.
std::vector<std::int64_t> reduced_dim_list(const c10::IValue* dims, std::int64_t ndim);

struct ReductionShape {
  RuleBuilder builder;
  std::vector<int> kept;  // dims of the result
};

// Letters of operand 0; reduced ones get `kind` and `op` and leave the result (or stay as size 1 with keepdim).
ReductionShape reduction_shape(const OperatorCall& call, const c10::IValue* dims, bool keepdim, Factor::Kind kind,
                               ReduceOp op);

// A boolean argument; false where the overload does not have it.
bool flag_argument(const OperatorCall& call, std::size_t argument);

// Extremes over an empty shard have no value of their own: the least (for a maximum) or greatest value stands in.
c10::Scalar extreme_identity(c10::ScalarType dtype, bool maximum);

}  // namespace dtensor
