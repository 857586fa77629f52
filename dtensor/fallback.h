// Operators without a rule, and the forms of operators that are expressed by other ones.
#pragma once

#include "dtensor/call.h"
#include "ops/decision.h"

namespace dtensor::detail {

// Counts and reports one run on replicated inputs, by policy. Errors: UnsupportedError under `fallback: error`, and
// always where replicated inputs would not give a right result (random numbers, writes that the schema hides).
void admit_fallback(const Call& call);

// Operands that an operator writes to besides its first one (running statistics, optimizer state): where the decision moves
// one, what is written is brought back to where it lives. Pending ones are refused.
void check_written_operands(const Call& call, const Decision& decision);
void write_moved_operands(const Call& call, const Decision& decision, c10::ArrayRef<at::Tensor> locals);

// An in-place operator whose result cannot be computed on the shards: computes on whole copies and keeps this rank's part
// of each tensor that was written to.
void run_in_place_replicated(Call& call);

// An in-place view (transpose_, squeeze_): the new geometry is set on the wrapper; the local tensor's handle, which other
// wrappers may share, is replaced and never changed. Returns false where the operator is no view (resize_).
bool run_in_place_view(Call& call);

// set_(dtensor, source): what torch::load does with a parameter. Takes the values of the source, a full plain tensor or a
// DTensor, as the tensor is placed.
void run_set(Call& call);

// out= : computes the functional form and writes the result into `out` as it is placed.
void run_out_variant(Call& call);

// Operators that ran on replicated inputs for want of a rule, and how often, in this World.
std::vector<std::pair<std::string, std::int64_t>> fallback_counts(World& world);

}  // namespace dtensor::detail
