// Moves that the consumers of one tensor share. Note [Shared move]
#pragma once

#include "dtensor/meta.h"

#include <vector>

namespace dtensor::detail {

// Note [Shared move]
// q, k and v read one tensor; each wants it Replicate. With a node per consumer that costs three gathers forward and
// three reductions backward. Instead the tensor's meta remembers the move: data without graph, the versions of data and
// source, and a weak reference to the autograd node. A hit wraps the data anew and hangs it on the same node. Valid while
// both versions match, the node lives where a graph is wanted, and stream and thread are the same: all conditions that
// follow from the program, so ranks agree.
//
// The tensor brought to `to`, differing on `mesh_dims` only (see move_dims).
at::Tensor shared_move(const at::Tensor& tensor, const Layout* to, const std::vector<std::int64_t>& mesh_dims);

// Says that autocast made `copy` of `source` inside AutocastScope: consumers of further copies of the same values share
// the moves of this one. Nothing to do outside such a scope.
void note_cast(const at::Tensor& source, const at::Tensor& copy);

// Errors: UnsupportedError for a view that had to move data and whose base has changed since.
void check_readable(const at::Tensor& tensor, const char* function);

}  // namespace dtensor::detail
