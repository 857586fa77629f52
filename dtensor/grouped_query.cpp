#include "dtensor/grouped_query.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>

namespace dtensor::detail {

bool shares_heads(const at::Tensor& query, const at::Tensor& key) {
  if (!is_dtensor(query) || !is_dtensor(key) || query.dim() != 4 || key.dim() != 4) return false;
  const auto heads = query.size(1), shared = key.size(1);
  if (shared == 0 || heads == shared || heads % shared != 0) return false;
  std::int64_t ranks = 1;
  for (const int mesh_dim : meta(query).layout->mesh_dims_cutting(1)) ranks *= meta(query).mesh->layout->size(mesh_dim);
  return shared % ranks != 0;
}

at::Tensor with_shared_heads(const at::Tensor& key, const at::Tensor& query) {
  const Meta& by = meta(query);
  Placements whole = DTensor(key).placements(), cut = whole, gradient = whole;
  for (std::size_t mesh_dim = 0; mesh_dim < whole.size(); ++mesh_dim) {
    const bool heads = by.layout->placement(static_cast<int>(mesh_dim)).is_sharded(1);
    if (!heads && !whole[mesh_dim].is_partial() && !whole[mesh_dim].is_sharded(1)) continue;
    whole[mesh_dim] = cut[mesh_dim] = gradient[mesh_dim] = Replicate();
    if (!heads) continue;
    cut[mesh_dim] = by.layout->placement(static_cast<int>(mesh_dim));
    gradient[mesh_dim] = Partial();
  }
  const auto group = query.size(1) / key.size(1);
  std::vector<std::int64_t> read;
  for (const auto& run : shard_math::local_intervals(*by.layout, 1, query.size(1), by.mesh->coordinate))
    for (std::int64_t i = 0; i < run.size; ++i) read.push_back((run.offset + i) / group);
  const auto local = DTensor(key).redistribute(whole).to_local({gradient});
  const auto index = at::tensor(read, at::TensorOptions(at::kLong)).to(local.device());
  auto sizes = key.sizes().vec();
  sizes[1] = query.size(1);
  return from_local(local.index_select(1, index), DeviceMesh(by.mesh), cut, {.global_sizes = sizes});
}

}  // namespace dtensor::detail
