// Key and value heads that ranks share: grouped-query attention with fewer of them than ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

// Note [Shared key-value heads]
// Query heads are cut over ranks, and several of them read one key-value head. Where the ranks do not divide the number
// of key-value heads (two of them on four ranks), no cut of k and v by all of them fits; ranks then hold the same heads and
// compute with those that their query heads read. On one mesh dimension every rank holds all; on several, those that cut
// query and key-value heads alike keep doing so (two heads on 2 x 2 ranks: a head a row). The gradient of k and v is a
// pending sum over the ranks that hold the same.

// Whether attention of this query and key [batch, heads, time, size] is such a case.
bool shares_heads(const at::Tensor& query, const at::Tensor& key);

// `key` (or a value) with one head for each query head, cut as the query: a rank keeps the heads that it reads.
// Differentiable. Requires shares_heads and that the number of query heads is a multiple.
at::Tensor with_shared_heads(const at::Tensor& key, const at::Tensor& query);

}  // namespace dtensor::detail
