// Options of the losses, checked and in the form that dtensor/cross_entropy.h takes. Private to this library.
#pragma once

#include "dtensor/cross_entropy.h"
#include "parallelize/vocab_parallel_cross_entropy.h"

namespace dtensor::detail {

// `rows`: sizes that the target must have; `vocabulary`: padded. Errors: PlacementError, UnsupportedError, with the
// function's name.
CrossEntropyTerms loss_terms(const char* function, const CrossEntropyOptions& options,
                             const at::Tensor& target, c10::IntArrayRef rows, std::int64_t vocabulary);

}  // namespace dtensor::detail
