// Global geometry of results, from the stock operator on tensors without data.
//
// Note [Global strides]
// Sizes and strides of a DTensor are global and must be the same on all ranks: uneven ranks would otherwise take different
// branches in reshape or contiguous, and hang. They are therefore never read off a local tensor that is a shard, but from
// the stock operator run on meta tensors with the global geometry, once per decision.
#pragma once

#include "dtensor/call.h"
#include "ops/decision.h"

namespace dtensor::detail {

// Fills memory order (and for views exact sizes and strides) of the sharded results of a fresh decision. Checks the
// call's shapes on the way: LibTorch's own error, on all ranks alike, before any communication.
void fill_geometry(Call& call, Decision& decision);

// The local results of a call whose shards are empty on this rank, without running it: stock operators may refuse empty
// tensors, and this rank would then throw alone. Nothing where some result is not empty here, or cannot be told.
// `call` must still have its global arguments.
std::optional<torch::jit::Stack> empty_results(Call& call, const Decision& decision);

// Throws LibTorch's own shape error for a call that it would refuse, where its Meta kernel can tell; before anything moves.
void check_shapes(Call& call);

// Throws LibTorch's own shape error for a call whose operands do not fit each other.
void throw_shape_error(Call& call);

}  // namespace dtensor::detail
