// DeviceMesh: a mesh as one rank sees it: its layout, this rank's coordinate and the groups along its
// dimensions.
#pragma once

#include "comm/group.h"
#include "comm/world.h"
#include "placements/mesh_layout.h"

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor {

namespace detail {
// One per (World, MeshLayout); owned by the World's book and by everybody who holds a DeviceMesh or a tensor
// on it.
struct MeshState : c10::intrusive_ptr_target {
  MeshState(World& world, const MeshLayout* layout);
  World* world;
  const MeshLayout* layout;
  bool member;                           // whether this rank is in the mesh
  std::vector<std::int64_t> coordinate;  // one index per mesh dimension; empty for an outsider
  c10::Device device;                    // of this rank's tensors
  std::vector<Group*> groups;            // per mesh dimension, made at first use
  std::map<std::vector<int>, Group*> merged_groups;
  Group& group(int mesh_dim);
  // The ranks along several dimensions (ascending), row-major.
  Group& group(const std::vector<int>& mesh_dims);
};
c10::intrusive_ptr<MeshState> mesh_state(World& world, const MeshLayout* layout);
}  // namespace detail

// A cheap handle. Equal when ranks, shape, names, device type and World are the same. Slices are meshes in
// full.
class DeviceMesh {
 public:
  explicit DeviceMesh(c10::intrusive_ptr<detail::MeshState> state) : state_(std::move(state)) {}

  const MeshLayout& layout() const { return *state_->layout; }
  World& world() const { return *state_->world; }
  int ndim() const { return layout().ndim(); }
  std::int64_t size() const { return layout().size(); }
  std::int64_t size(int mesh_dim) const { return layout().size(mesh_dim); }
  std::int64_t size(const std::string& name) const { return layout().size(layout().dim(name)); }
  const std::vector<std::string>& names() const { return layout().names(); }
  c10::Device device() const { return state_->device; }

  // Whether this rank is part of the mesh; outsiders hold empty tensors.
  bool is_member() const { return state_->member; }
  // Errors: MeshError for an outsider.
  const std::vector<std::int64_t>& coordinate() const;
  std::int64_t coordinate(const std::string& name) const;

  // The sub-mesh of this rank along the named dimension(s), in the order given. Errors: MeshError.
  DeviceMesh operator[](const std::string& name) const { return slice({name}); }
  DeviceMesh slice(const std::vector<std::string>& names) const;
  // Adjacent dimensions merged into one.
  DeviceMesh flatten(const std::vector<std::string>& names, const std::string& new_name) const;

  Group& group(int mesh_dim) const { return state_->group(mesh_dim); }
  Group& group(const std::string& name) const { return state_->group(layout().dim(name)); }
  // All ranks of the mesh, row-major.
  Group& whole_group() const;

  std::string to_string() const { return layout().to_string(); }
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.state_ == b.state_; }
  const c10::intrusive_ptr<detail::MeshState>& state() const { return state_; }

 private:
  c10::intrusive_ptr<detail::MeshState> state_;
};

// A mesh over ranks 0 .. product(shape)-1 of the current World. Ranks beyond are outsiders. One size may be
// -1: what is left of the world. Errors: MeshError, with the shape, the ranks needed and those present; no
// group is made before all is checked.
DeviceMesh init_device_mesh(c10::DeviceType device_type, std::vector<std::int64_t> shape,
                            std::vector<std::string> names);
// A mesh over chosen global ranks, row-major. Only its members need to call this.
DeviceMesh device_mesh(c10::DeviceType device_type, std::vector<std::int64_t> shape,
                       std::vector<std::string> names, std::vector<std::int64_t> ranks);

}  // namespace dtensor
