#include "dtensor/grouped_query.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// The outermost mesh dimensions that cut query heads and key-value heads alike: there a rank holds the key-value heads that
// its query heads read, and they stay.
std::vector<int> alike_cut(const Layout& query, const Layout& key, std::int64_t shared) {
  std::vector<int> kept;
  if (!query.has_default_order() || !key.has_default_order()) return kept;
  std::int64_t pieces = 1;
  const auto of_query = query.mesh_dims_cutting(1), of_key = key.mesh_dims_cutting(1);
  for (std::size_t i = 0; i < std::min(of_query.size(), of_key.size()); ++i) {
    const int mesh_dim = of_query[i];
    pieces *= query.mesh().size(mesh_dim);
    const bool alike = of_key[i] == mesh_dim && query.placement(mesh_dim).is_shard() && key.placement(mesh_dim).is_shard();
    if (!alike || shared % pieces != 0) break;
    kept.push_back(mesh_dim);
  }
  return kept;
}

}  // namespace

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
  const auto kept = alike_cut(*by.layout, *meta(key).layout, key.size(1));
  Placements held = DTensor(key).placements(), cut = held, gradient = held;
  for (int mesh_dim = 0; mesh_dim < by.layout->mesh_ndim(); ++mesh_dim) {
    const auto at = static_cast<std::size_t>(mesh_dim);
    if (std::find(kept.begin(), kept.end(), mesh_dim) != kept.end()) continue;
    const bool heads = by.layout->placement(mesh_dim).is_sharded(1);
    if (!heads && !held[at].is_partial() && !held[at].is_sharded(1)) continue;
    held[at] = cut[at] = gradient[at] = Replicate();
    if (!heads) continue;
    cut[at] = by.layout->placement(mesh_dim);
    gradient[at] = Partial();
  }
  const auto& coordinate = by.mesh->coordinate;
  const auto held_heads = shard_math::local_intervals(*Layout::of(by.layout->mesh_pointer(), held), 1, key.size(1), coordinate);
  const auto first = held_heads.empty() ? 0 : held_heads.front().offset;
  const auto group = query.size(1) / key.size(1);
  std::vector<std::int64_t> read;
  for (const auto& run : shard_math::local_intervals(*by.layout, 1, query.size(1), coordinate))
    for (std::int64_t i = 0; i < run.size; ++i) read.push_back((run.offset + i) / group - first);
  const auto local = DTensor(key).redistribute(held).to_local({gradient});
  const auto index = at::tensor(read, at::TensorOptions(at::kLong)).to(local.device());
  auto sizes = key.sizes().vec();
  sizes[1] = query.size(1);
  return from_local(local.index_select(1, index), DeviceMesh(by.mesh), cut, {.global_sizes = sizes});
}

}  // namespace dtensor::detail
