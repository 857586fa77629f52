#include "placements/mesh_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <unordered_set>
#include <utility>

#include "placements/error.h"

namespace dtensor {
namespace {

// What makes two meshes equal.
struct MeshKey {
  c10::DeviceType device_type;
  std::vector<std::int64_t> shape;
  std::vector<std::string> names;
  std::vector<std::int64_t> ranks;
  friend auto operator<=>(const MeshKey&, const MeshKey&) = default;
};

// The count of ranks of a shape. Errors: MeshError for a shape that is none.
std::int64_t checked_size(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) throw MeshError("a mesh needs at least one dimension, but its shape is empty");
  std::int64_t size = 1;
  for (const auto extent : shape) {
    if (extent < 1) {
      throw MeshError(fmt::format("mesh shape ({}) has a dimension of size {}; every size must be at least 1",
                                  fmt::join(shape, ", "), extent));
    }
    if (__builtin_mul_overflow(size, extent, &size)) {
      throw MeshError(fmt::format("mesh shape ({}) is too large", fmt::join(shape, ", ")));
    }
  }
  return size;
}

void check_names(const std::vector<std::int64_t>& shape, const std::vector<std::string>& names) {
  if (names.size() != shape.size()) {
    throw MeshError(fmt::format("mesh shape ({}) has {} dimensions, but {} names were given: ({})",
                                fmt::join(shape, ", "), shape.size(), names.size(), fmt::join(names, ", ")));
  }
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (name->empty()) {
      throw MeshError(fmt::format("a mesh dimension has an empty name: ({})", fmt::join(names, ", ")));
    }
    if (std::find(names.begin(), name, *name) != name) {
      throw MeshError(
          fmt::format("mesh dimension name '{}' occurs twice in ({})", *name, fmt::join(names, ", ")));
    }
  }
}

void check_ranks(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& ranks,
                 std::int64_t size) {
  if (static_cast<std::int64_t>(ranks.size()) != size) {
    throw MeshError(fmt::format("a mesh of shape ({}) needs {} ranks, but {} were given",
                                fmt::join(shape, ", "), size, ranks.size()));
  }
  std::unordered_set<std::int64_t> seen;
  for (const auto rank : ranks) {
    if (rank < 0) throw MeshError(fmt::format("a mesh cannot hold the negative rank {}", rank));
    if (!seen.insert(rank).second) throw MeshError(fmt::format("rank {} occurs twice in a mesh", rank));
  }
}

}  // namespace

const MeshLayout* MeshLayout::of(c10::DeviceType device_type, std::vector<std::int64_t> shape,
                                 std::vector<std::string> names, std::vector<std::int64_t> ranks) {
  const std::int64_t size = checked_size(shape);
  check_names(shape, names);
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  }
  check_ranks(shape, ranks, size);

  static auto* const mutex = new std::shared_mutex;
  static auto* const known = new std::map<MeshKey, std::unique_ptr<const MeshLayout>>;  // immortal
  MeshKey key{device_type, std::move(shape), std::move(names), std::move(ranks)};
  {
    std::shared_lock lock(*mutex);
    if (const auto found = known->find(key); found != known->end()) return found->second.get();
  }
  std::unique_ptr<MeshLayout> mesh(new MeshLayout);
  mesh->device_type_ = key.device_type;
  mesh->shape_ = key.shape;
  mesh->names_ = key.names;
  mesh->ranks_ = key.ranks;
  std::unique_lock lock(*mutex);
  return known->try_emplace(std::move(key), std::move(mesh)).first->second.get();
}

std::optional<int> MeshLayout::find_dim(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) return std::nullopt;
  return static_cast<int>(found - names_.begin());
}

int MeshLayout::dim(const std::string& name) const {
  if (const auto found = find_dim(name)) return *found;
  throw MeshError(fmt::format("mesh {} has no dimension '{}'; its dimensions are: {}", to_string(), name,
                              fmt::join(names_, ", ")));
}

std::optional<std::vector<std::int64_t>> MeshLayout::coordinate_of(std::int64_t rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end()) return std::nullopt;
  std::int64_t position = found - ranks_.begin();
  std::vector<std::int64_t> coordinate(shape_.size());
  for (std::size_t mesh_dim = shape_.size(); mesh_dim-- > 0;) {
    coordinate[mesh_dim] = position % shape_[mesh_dim];
    position /= shape_[mesh_dim];
  }
  return coordinate;
}

std::int64_t MeshLayout::rank_at(std::span<const std::int64_t> coordinate) const {
  TORCH_INTERNAL_ASSERT(coordinate.size() == shape_.size(), "a coordinate has one index per mesh dimension");
  std::int64_t position = 0;
  for (std::size_t mesh_dim = 0; mesh_dim < shape_.size(); ++mesh_dim) {
    TORCH_INTERNAL_ASSERT(coordinate[mesh_dim] >= 0 && coordinate[mesh_dim] < shape_[mesh_dim],
                          "a coordinate lies inside its mesh");
    position = position * shape_[mesh_dim] + coordinate[mesh_dim];
  }
  return ranks_[static_cast<std::size_t>(position)];
}

std::vector<std::int64_t> MeshLayout::ranks_along(std::span<const int> mesh_dims,
                                                  std::span<const std::int64_t> coordinate) const {
  std::size_t count = 1;
  for (const int mesh_dim : mesh_dims) count *= static_cast<std::size_t>(size(mesh_dim));
  std::vector<std::int64_t> moving(coordinate.begin(), coordinate.end());
  std::vector<std::int64_t> result;
  result.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto position = static_cast<std::int64_t>(i);
    for (std::size_t d = mesh_dims.size(); d-- > 0;) {
      moving[static_cast<std::size_t>(mesh_dims[d])] = position % size(mesh_dims[d]);
      position /= size(mesh_dims[d]);
    }
    result.push_back(rank_at(moving));
  }
  return result;
}

const MeshLayout* MeshLayout::slice(const std::vector<std::string>& names,
                                    std::span<const std::int64_t> coordinate) const {
  std::vector<int> mesh_dims;
  std::vector<std::int64_t> shape;
  for (const auto& name : names) {
    mesh_dims.push_back(dim(name));
    shape.push_back(size(mesh_dims.back()));
  }
  check_names(shape, names);  // before ranks are listed: a name given twice would list ranks twice
  return of(device_type_, shape, names, ranks_along(mesh_dims, coordinate));
}

const MeshLayout* MeshLayout::flatten(const std::vector<std::string>& names,
                                      const std::string& new_name) const {
  if (names.empty()) throw MeshError(fmt::format("flatten of mesh {} names no dimension", to_string()));
  const int first = dim(names.front());
  const int last = first + static_cast<int>(names.size()) - 1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (dim(names[i]) != first + static_cast<int>(i)) {
      throw MeshError(
          fmt::format("cannot flatten ({}) of mesh {}: the dimensions must be adjacent and in mesh order",
                      fmt::join(names, ", "), to_string()));
    }
  }
  std::vector<std::int64_t> shape;
  std::vector<std::string> new_names;
  for (int mesh_dim = 0; mesh_dim < ndim(); ++mesh_dim) {
    if (mesh_dim > first && mesh_dim <= last) {
      shape.back() *= size(mesh_dim);
      continue;
    }
    shape.push_back(size(mesh_dim));
    new_names.push_back(mesh_dim == first ? new_name : names_[static_cast<std::size_t>(mesh_dim)]);
  }
  return of(device_type_, std::move(shape), std::move(new_names), ranks_);
}

std::string MeshLayout::to_string() const {
  std::string text = "(";
  for (std::size_t mesh_dim = 0; mesh_dim < shape_.size(); ++mesh_dim) {
    text += fmt::format("{}{}={}", mesh_dim == 0 ? "" : ", ", names_[mesh_dim], shape_[mesh_dim]);
  }
  text += fmt::format(") on {}", c10::DeviceTypeName(device_type_, /*lower_case=*/true));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] == static_cast<std::int64_t>(i)) continue;
    return text + fmt::format(" of ranks [{}]", fmt::join(ranks_, ", "));
  }
  return text;
}

}  // namespace dtensor
