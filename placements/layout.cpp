#include "placements/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <unordered_map>

#include "placements/error.h"

namespace dtensor {
namespace {

// A question to the table, with the cut order as it was asked: to find a known layout, nothing is copied or sorted.
struct View {
  const MeshLayout* mesh;
  const Placements* placements;
  const std::vector<int>* cut_order;
};
struct Key {
  const MeshLayout* mesh;
  Placements placements;
  std::vector<int> cut_order;
  View view() const { return {mesh, &placements, &cut_order}; }
};

struct Hash {
  using is_transparent = void;
  std::size_t operator()(const View& view) const {
    std::size_t seed = std::hash<const void*>{}(view.mesh);
    const auto mix = [&seed](std::size_t value) {
      seed ^= value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2);
    };
    for (const auto& placement : *view.placements) {
      mix(static_cast<std::size_t>(placement.kind()));
      mix(static_cast<std::size_t>(placement.reduce_op()));
      mix(static_cast<std::size_t>(placement.dim()));
      if (placement.is_interleaved()) mix(std::hash<const void*>{}(&placement.parts()));
    }
    for (const int mesh_dim : *view.cut_order) mix(static_cast<std::size_t>(mesh_dim));
    return seed;
  }
  std::size_t operator()(const Key& key) const { return (*this)(key.view()); }
};

struct Equal {
  using is_transparent = void;
  bool operator()(const View& a, const View& b) const {
    return a.mesh == b.mesh && *a.placements == *b.placements && *a.cut_order == *b.cut_order;
  }
  bool operator()(const Key& a, const Key& b) const { return (*this)(a.view(), b.view()); }
  bool operator()(const View& a, const Key& b) const { return (*this)(a, b.view()); }
  bool operator()(const Key& a, const View& b) const { return (*this)(a.view(), b); }
};

// The table of all layouts: immortal. Several keys (spellings of the cut order) may name one layout.
struct Table {
  std::shared_mutex mutex;
  std::unordered_map<Key, const Layout*, Hash, Equal> layouts;
};
Table& table() {
  static auto* const instance = new Table;
  return *instance;
}

std::vector<int> default_order(std::size_t mesh_ndim) {
  std::vector<int> order(mesh_ndim);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void check(const MeshLayout& mesh, const Placements& placements, const std::vector<int>& cut_order) {
  if (placements.size() != static_cast<std::size_t>(mesh.ndim())) {
    throw PlacementError(fmt::format("mesh {} needs {} placements, one per dimension, but got {}: {}",
                                     mesh.to_string(), mesh.ndim(), placements.size(),
                                     to_string(placements)));
  }
  for (const auto& placement : placements) {
    if (placement.is_sharded() && placement.dim() < 0) {
      throw PlacementError(
          fmt::format("a layout needs dimensions counted from the front, but got {}", to_string(placements)));
    }
  }
  if (cut_order.empty()) return;
  std::vector<int> sorted = cut_order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != default_order(placements.size())) {
    throw PlacementError(
        fmt::format("the cut order of a layout on mesh {} must name each of its {} dimensions "
                    "once, by number, outermost first",
                    mesh.to_string(), mesh.ndim()));
  }
}

// The one spelling of a cut order: starting from left to right, the mesh dimensions that cut one tensor
// dimension share the places they have among themselves, in the order asked for.
std::vector<int> canonical_order(const Placements& placements, const std::vector<int>& cut_order) {
  auto result = default_order(placements.size());
  if (cut_order.empty()) return result;
  const auto cut_dim = [&](int mesh_dim) {
    const auto& placement = placements[static_cast<std::size_t>(mesh_dim)];
    return placement.is_sharded() ? placement.dim() : -1;
  };
  for (std::size_t place = 0; place < result.size(); ++place) {
    const std::int64_t dim = cut_dim(static_cast<int>(place));
    if (dim < 0) continue;
    // `place` is the i-th mesh dimension, left to right, that cuts `dim`: it receives the i-th one asked for.
    std::int64_t skip = 0;
    for (std::size_t left = 0; left < place; ++left) skip += cut_dim(static_cast<int>(left)) == dim ? 1 : 0;
    for (const int mesh_dim : cut_order) {
      if (cut_dim(mesh_dim) != dim || skip-- > 0) continue;
      result[place] = mesh_dim;
      break;
    }
  }
  return result;
}

}  // namespace

const Layout* Layout::of(const MeshLayout* mesh, const Placements& placements,
                         const std::vector<int>& cut_order) {
  TORCH_INTERNAL_ASSERT(mesh != nullptr, "a layout needs a mesh");
  const View asked{mesh, &placements, &cut_order};
  {
    std::shared_lock lock(table().mutex);
    if (const auto found = table().layouts.find(asked); found != table().layouts.end()) return found->second;
  }
  check(*mesh, placements, cut_order);
  std::unique_ptr<Layout> layout(new Layout);
  layout->mesh_ = mesh;
  layout->placements_ = placements;
  layout->cut_order_ = canonical_order(placements, cut_order);
  layout->default_order_ = std::is_sorted(layout->cut_order_.begin(), layout->cut_order_.end());
  for (const auto& placement : placements) {
    layout->replicated_ = layout->replicated_ && placement.is_replicate();
    layout->has_partial_ = layout->has_partial_ || placement.is_partial();
    layout->sharded_ = layout->sharded_ || placement.is_sharded();
    if (placement.is_sharded()) layout->max_dim_ = std::max(layout->max_dim_, placement.dim());
  }
  for (int mesh_dim = 0; mesh_dim < mesh->ndim(); ++mesh_dim) {
    const auto& placement = layout->placement(mesh_dim);
    if (placement.is_interleaved() && layout->mesh_dims_cutting(placement.dim()).front() != mesh_dim) {
      throw PlacementError(
          fmt::format("{} of mesh dimension '{}' must be the outermost cut of tensor dimension {}, but "
                      "another mesh dimension cuts "
                      "it first: {}; give a cut order that begins with it",
                      placement.to_string(), mesh->names()[static_cast<std::size_t>(mesh_dim)],
                      placement.dim(), layout->to_string()));
    }
  }
  std::unique_lock lock(table().mutex);
  const auto [entry, is_new] =
      table().layouts.try_emplace({mesh, placements, layout->cut_order_}, layout.get());
  if (is_new) layout.release();  // the table's, for ever
  const Layout* const result = entry->second;
  table().layouts.try_emplace({mesh, placements, cut_order}, result);
  return result;
}

std::vector<int> Layout::mesh_dims_cutting(std::int64_t tensor_dim) const {
  std::vector<int> result;
  for (const int mesh_dim : cut_order_) {
    if (placement(mesh_dim).is_sharded(tensor_dim)) result.push_back(mesh_dim);
  }
  return result;
}

const Layout* Layout::with(int mesh_dim, Placement placement) const {
  Placements placements = placements_;
  placements[static_cast<std::size_t>(mesh_dim)] = placement;
  return of(mesh_, placements, cut_order_);
}

const Layout* Layout::replicated() const {
  return replicated_ ? this : of(mesh_, Placements(placements_.size()));
}

const Layout* Layout::without_partial() const {
  if (!has_partial_) return this;
  Placements placements = placements_;
  for (auto& placement : placements) {
    if (placement.is_partial()) placement = Placement();
  }
  return of(mesh_, placements, cut_order_);
}

std::string Layout::to_string() const {
  std::string text = dtensor::to_string(placements_);
  if (!default_order_) {
    text += " cut in the order ";
    for (std::size_t i = 0; i < cut_order_.size(); ++i) {
      text += (i == 0 ? "" : ", ") + mesh_->names()[static_cast<std::size_t>(cut_order_[i])];
    }
  }
  return text + " on " + mesh_->to_string();
}

}  // namespace dtensor
