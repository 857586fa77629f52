// MeshLayout: the shape of a mesh of ranks, without a rank of its own and without any connection.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dtensor {

// An n-dimensional, named arrangement of ranks. Interned process-wide and immortal: equal ones (same ranks,
// shape, names, device type) are the same object, so they are compared by pointer.
class MeshLayout {
 public:
  // `ranks`: row-major, ranks[i] is the global rank at position i; by default 0, 1, ..., n-1.
  // Errors: MeshError for an empty shape, a size below 1, shape and names of different length, an empty or
  // duplicate name, a rank list of another length than the shape's product, a negative or duplicate rank.
  static const MeshLayout* of(c10::DeviceType device_type, std::vector<std::int64_t> shape,
                              std::vector<std::string> names, std::vector<std::int64_t> ranks = {});

  c10::DeviceType device_type() const { return device_type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  int ndim() const { return static_cast<int>(shape_.size()); }
  std::int64_t size() const { return static_cast<std::int64_t>(ranks_.size()); }
  std::int64_t size(int mesh_dim) const { return shape_[static_cast<std::size_t>(mesh_dim)]; }

  std::optional<int> find_dim(const std::string& name) const;
  // Errors: MeshError naming the dimensions there are.
  int dim(const std::string& name) const;

  // Position of a global rank, one index per mesh dimension; nothing for a rank outside the mesh.
  std::optional<std::vector<std::int64_t>> coordinate_of(std::int64_t rank) const;
  // The global rank at a coordinate.
  std::int64_t rank_at(std::span<const std::int64_t> coordinate) const;
  // The global ranks that differ from `coordinate` only along `mesh_dims` (row-major over them, in the given
  // order).
  std::vector<std::int64_t> ranks_along(std::span<const int> mesh_dims,
                                        std::span<const std::int64_t> coordinate) const;

  // The sub-mesh of the named dimensions, in the given order, that holds the rank at `coordinate`.
  // Errors: MeshError for an unknown or repeated name.
  const MeshLayout* slice(const std::vector<std::string>& names,
                          std::span<const std::int64_t> coordinate) const;
  // This mesh with the named dimensions (adjacent, in mesh order) merged into one, row-major, at the place of
  // the first.
  // Errors: MeshError for unknown names, names that are not adjacent in order, or a new name already in use.
  const MeshLayout* flatten(const std::vector<std::string>& names, const std::string& new_name) const;

  // "(dp=2, tp=4) on cpu"; also names the ranks when they are not 0, 1, ..., n-1.
  std::string to_string() const;

  MeshLayout(const MeshLayout&) = delete;
  MeshLayout& operator=(const MeshLayout&) = delete;

 private:
  MeshLayout() = default;
  c10::DeviceType device_type_ = c10::DeviceType::CPU;
  std::vector<std::int64_t> shape_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> ranks_;
};

}  // namespace dtensor
