#include "comm/device_mesh.h"

#include "comm/world_state.h"
#include "placements/error.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>
#include <numeric>

namespace dtensor {

namespace {

std::string list(const std::vector<std::int64_t>& values) {
  std::string text = "(";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + ")";
}

// The device of this rank: of several accelerators the one of its local rank, of one (each rank sees its own)
// that.
c10::Device device_of_rank(const World& world, c10::DeviceType type) {
  world.state().check_device(type);
  if (type == c10::DeviceType::CPU || type == c10::DeviceType::Meta) return c10::Device(type);
  const auto* accelerator =
      c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type) : nullptr;
  const int present = accelerator ? accelerator->deviceCount() : 0;
  const int wanted = present == 1 ? 0 : world.local_rank();
  if (wanted >= present) {
    throw MeshError("rank " + std::to_string(world.rank()) + " (local rank " +
                    std::to_string(world.local_rank()) + ") needs a " + c10::DeviceTypeName(type, true) +
                    " device of its own, but " + std::to_string(present) + " are visible");
  }
  return c10::Device(type, static_cast<c10::DeviceIndex>(wanted));
}

struct MeshBook {
  std::mutex mutex;
  std::map<const MeshLayout*, c10::intrusive_ptr<detail::MeshState>> meshes;
};

// For an outsider: the coordinate of the mesh's first rank, so that its slices are meshes without it.
std::vector<std::int64_t> coordinate_or_first(const detail::MeshState& state) {
  return state.member ? state.coordinate
                      : std::vector<std::int64_t>(static_cast<std::size_t>(state.layout->ndim()), 0);
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

[[noreturn]] void refuse_outsider(const detail::MeshState& state, const char* what) {
  throw MeshError("rank " + std::to_string(state.world->rank()) + " is outside the mesh " +
                  state.layout->to_string() + " over " + detail::describe_ranks(state.layout->ranks()) +
                  " and has no " + what + " there");
}

}  // namespace

namespace detail {

MeshState::MeshState(World& of_world, const MeshLayout* of_layout)
    : world(&of_world),
      layout(of_layout),
      member(false),
      device(device_of_rank(of_world, of_layout->device_type())) {
  if (auto position = layout->coordinate_of(world->rank())) {
    member = true;
    coordinate = *std::move(position);
  }
  groups.resize(static_cast<std::size_t>(layout->ndim()), nullptr);
}

Group& MeshState::group(int mesh_dim) {
  auto& entry = groups.at(static_cast<std::size_t>(mesh_dim));
  if (!entry) {
    if (!member) refuse_outsider(*this, "group");
    const int dims[] = {mesh_dim};
    entry = &world->group(layout->ranks_along(dims, coordinate),
                          layout->names()[static_cast<std::size_t>(mesh_dim)], layout->device_type());
  }
  return *entry;
}

Group& MeshState::group(const std::vector<int>& mesh_dims) {
  if (mesh_dims.size() == 1) return group(mesh_dims[0]);
  auto& entry = merged_groups[mesh_dims];
  if (!entry) {
    if (!member) refuse_outsider(*this, "group");
    std::vector<std::string> names;
    for (const int mesh_dim : mesh_dims) names.push_back(layout->names()[static_cast<std::size_t>(mesh_dim)]);
    entry = &world->group(layout->ranks_along(mesh_dims, coordinate), join(names), layout->device_type());
  }
  return *entry;
}

c10::intrusive_ptr<MeshState> mesh_state(World& world, const MeshLayout* layout) {
  auto& book = world.slot<MeshBook>();
  const std::lock_guard lock(book.mutex);
  if (const auto found = book.meshes.find(layout); found != book.meshes.end()) return found->second;
  for (const auto rank : layout->ranks()) {
    if (rank >= world.size()) {
      throw MeshError("the mesh " + layout->to_string() + " over " + describe_ranks(layout->ranks()) +
                      " names rank " + std::to_string(rank) + ", but this world has " +
                      std::to_string(world.size()) + (world.size() == 1 ? " rank" : " ranks"));
    }
  }
  return book.meshes[layout] = c10::make_intrusive<MeshState>(world, layout);
}

}  // namespace detail

const std::vector<std::int64_t>& DeviceMesh::coordinate() const {
  if (!state_->member) refuse_outsider(*state_, "coordinate");
  return state_->coordinate;
}

std::int64_t DeviceMesh::coordinate(const std::string& name) const {
  return coordinate()[static_cast<std::size_t>(layout().dim(name))];
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  return DeviceMesh(detail::mesh_state(world(), layout().slice(names, coordinate_or_first(*state_))));
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& names, const std::string& new_name) const {
  return DeviceMesh(detail::mesh_state(world(), layout().flatten(names, new_name)));
}

Group& DeviceMesh::whole_group() const {
  if (ndim() == 1) return group(0);
  if (!is_member()) refuse_outsider(*state_, "group");
  return world().group(layout().ranks(), join(names()), layout().device_type());
}

DeviceMesh init_device_mesh(c10::DeviceType device_type, std::vector<std::int64_t> shape,
                            std::vector<std::string> names) {
  World& world = World::current();
  const std::string asked = "a mesh of shape " + list(shape);
  std::int64_t known = 1;
  int open = 0;
  for (const auto size : shape) {
    if (size == -1) {
      ++open;
    } else if (size < 1) {
      throw MeshError(asked + " has a dimension of size " + std::to_string(size) +
                      "; sizes are 1 or more (one may "
                      "be -1: what is left of the world)");
    } else {
      known *= size;
    }
  }
  if (open > 1) throw MeshError(asked + " leaves more than one size open");
  if (open == 1) {
    if (world.size() % known != 0) {
      throw MeshError(asked + ": the world of " + std::to_string(world.size()) +
                      " ranks is not a multiple of " + std::to_string(known));
    }
    for (auto& size : shape) size = size == -1 ? world.size() / known : size;
    known = world.size();
  }
  if (known > world.size()) {
    throw MeshError(asked + " needs " + std::to_string(known) + " ranks, but this world has " +
                    std::to_string(world.size()) + (world.size() == 1 ? " rank" : " ranks") +
                    " (found by: " + world.source() + ")");
  }
  return DeviceMesh(
      detail::mesh_state(world, MeshLayout::of(device_type, std::move(shape), std::move(names))));
}

DeviceMesh device_mesh(c10::DeviceType device_type, std::vector<std::int64_t> shape,
                       std::vector<std::string> names, std::vector<std::int64_t> ranks) {
  World& world = World::current();
  return DeviceMesh(detail::mesh_state(
      world, MeshLayout::of(device_type, std::move(shape), std::move(names), std::move(ranks))));
}

}  // namespace dtensor
