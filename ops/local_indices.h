// Indices into a cut dimension, as indices into this rank's piece of it: shared by the files of gathers and scatters.
#pragma once

#include "ops/kernel_context.h"

namespace dtensor {

struct LocalIndices {
  at::Tensor indices;  // where another rank holds the element: 0
  at::Tensor foreign;  // whether it does; as many elements
};

// Errors: IndexError where an index lies outside the whole dimension (on the CPU; it would pass for foreign). Indices
// from the end are resolved where the operator takes them.
LocalIndices local_indices(const KernelContext& context, std::size_t operand, std::int64_t dim,
                           const at::Tensor& indices, bool from_end = false);

// What a gather into a cut dimension gives on one rank is masked by zeros, which the results of all ranks add up over.
inline ReduceOp sum_of_masked(c10::ScalarType dtype) {
  return dtype == c10::kBool ? ReduceOp::max : ReduceOp::sum;
}

// Writes `source` at rows `positions` (global, of dimension `dim`) of `self`, operand 0, which may be cut there: each
// rank keeps the rows that it holds. The tensor that the call returns: `self` itself where the call works in place.
at::Tensor write_rows(const KernelContext& context, const at::Tensor& self, std::int64_t dim,
                      const at::Tensor& positions, const at::Tensor& source);

bool works_in_place(const KernelContext& context);

}  // namespace dtensor
