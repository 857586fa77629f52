// Packs what a decision depends on into a cache key.
#pragma once

#include "dtensor/call.h"
#include "dtensor/decision_cache.h"

namespace dtensor::detail {

// Operator, layouts, rank, size-1 dimensions, memory order, dtypes and keyed arguments; not sizes.
void pack_key(const Call& call, DecisionKey& key);
// Adds full sizes and strides, for decisions that depend on them.
void pack_sizes(const Call& call, DecisionKey& key);

}  // namespace dtensor::detail
