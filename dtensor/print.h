// Printing a DTensor.
#pragma once

#include "dtensor/dtensor.h"

#include <iosfwd>
#include <string>

namespace dtensor {

// How the tensor is placed, and the values that this rank holds: all of them where it is replicated, else its part. Never
// communicates, so one rank may print alone; print full_tensor() for the values of a sharded or pending tensor.
std::string to_string(const DTensor& tensor);

// The same. LibTorch's operator<< of an at::Tensor reads memory, which a DTensor has not: it throws.
std::ostream& operator<<(std::ostream& stream, const DTensor& tensor);

}  // namespace dtensor
