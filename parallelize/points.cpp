#include "parallelize/points.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "dtensor/wished_move.h"
#include "placements/error.h"

#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <memory>
#include <mutex>
#include <typeindex>
#include <unordered_map>

namespace dtensor {
namespace {

using detail::PreparedPoint;

// By type, because forward is the type's. Types are declared by whatever thread builds a module.
struct DeclaredTypes {
  std::mutex mutex;
  std::unordered_map<std::type_index, std::vector<std::string>> points;
};
DeclaredTypes& declared_types() {
  static auto* types = new DeclaredTypes;
  return *types;
}

struct PreparedModule {
  std::weak_ptr<torch::nn::Module> module;  // expired: another module may have its address by now
  c10::intrusive_ptr<detail::MeshState> mesh;
  std::vector<int> mesh_dims;
  std::vector<PreparedPoint> points;
};

// Of one World.
struct PreparedModules {
  std::map<const torch::nn::Module*, PreparedModule> by_module;
};

at::Tensor enter(const at::Tensor& tensor, const PreparedModule& prepared, const PreparedPoint& point) {
  if (is_dtensor(tensor)) return tensor;
  const DeviceMesh mesh(prepared.mesh);
  if (!point.comes || mesh.ndim() != 1)
    throw UnsupportedError(fmt::format(
        "constrain: a plain tensor at the \"{}\" of a module that a plan prepares on mesh {}. {}",
        point.point, mesh.to_string(),
        mesh.ndim() != 1
            ? "Bring it in with from_local or distribute_batch: a plan states one mesh dimension only."
            : "State in the rule how it comes (\"" + point.point +
                  "\": [\"Replicate\"]), or bring it in "
                  "with from_local."));
  return from_local(tensor, mesh, {*point.comes});
}

at::Tensor brought(const at::Tensor& tensor, const PreparedModule& prepared, const std::string& name) {
  auto result = tensor;
  for (const auto& point : prepared.points) {
    if (point.point != name) continue;
    Wish wish;
    for (const int mesh_dim : prepared.mesh_dims) wish.input.push_back({mesh_dim, point.desired});
    wish.output = wish.input;
    result = enter(result, prepared, point);
    // An input may have other consumers that want the same: they share the move.
    result =
        name == "input" ? detail::with_input_wish(result, &wish) : detail::with_output_wish(result, &wish);
  }
  return result;
}

// Stands in a Sequential for one of its children.
struct PreparedChildImpl : torch::nn::Module {
  PreparedChildImpl(torch::nn::AnyModule wrapped, PreparedModule state)
      : child(std::move(wrapped)), prepared(std::move(state)) {}
  at::Tensor forward(at::Tensor input) {
    return brought(child.forward<at::Tensor>(brought(input, prepared, "input")), prepared, "output");
  }
  torch::nn::AnyModule child;
  PreparedModule prepared;
};

PreparedModule prepared_module(torch::nn::Module& module, const DeviceMesh& mesh, const std::vector<int>& mesh_dims,
                               std::vector<PreparedPoint> points) {
  return {module.shared_from_this(), mesh.state(), mesh_dims, std::move(points)};
}

}  // namespace

void declare_points(torch::nn::Module& module, const std::vector<std::string>& points) {
  auto& types = declared_types();
  const std::lock_guard lock(types.mutex);
  types.points[std::type_index(typeid(module))] = points;
}

at::Tensor constrain(torch::nn::Module& module, const std::string& point, const at::Tensor& tensor) {
  World* world = is_dtensor(tensor) ? detail::meta(tensor).mesh->world : World::current_or_null();
  if (!world) return tensor;
  const auto& by_module = world->slot<PreparedModules>().by_module;
  const auto at = by_module.find(&module);
  if (at == by_module.end() || at->second.module.expired()) return tensor;
  return brought(tensor, at->second, point);
}

namespace detail {

std::vector<std::string> declared_points(const torch::nn::Module& module) {
  auto& types = declared_types();
  const std::lock_guard lock(types.mutex);
  const auto at = types.points.find(std::type_index(typeid(module)));
  return at == types.points.end() ? std::vector<std::string>{} : at->second;
}

void prepare_points(torch::nn::Module& module, const DeviceMesh& mesh, const std::vector<int>& mesh_dims,
                    std::vector<PreparedPoint> points) {
  mesh.world().slot<PreparedModules>().by_module[&module] =
      prepared_module(module, mesh, mesh_dims, std::move(points));
}

void prepare_child(torch::nn::Module& sequential, torch::nn::Module& child, const DeviceMesh& mesh,
                   const std::vector<int>& mesh_dims, std::vector<PreparedPoint> points) {
  auto* container = sequential.as<torch::nn::SequentialImpl>();
  TORCH_INTERNAL_ASSERT(container != nullptr, "prepare_child of a module that is no Sequential");
  for (auto entry = container->begin(); entry != container->end(); ++entry) {
    if (entry->ptr().get() != &child) continue;
    *entry = torch::nn::AnyModule(std::make_shared<PreparedChildImpl>(
        *entry, prepared_module(child, mesh, mesh_dims, std::move(points))));
    return;
  }
}

void forget_points(torch::nn::Module& root, World& world) {
  auto& prepared = world.slot<PreparedModules>();
  const auto forget = [&](torch::nn::Module& module) {
    prepared.by_module.erase(&module);
    auto* container = module.as<torch::nn::SequentialImpl>();
    if (!container) return;
    for (auto entry = container->begin(); entry != container->end(); ++entry) {
      const auto held = entry->ptr();
      if (auto* wrapper = held->as<PreparedChildImpl>()) *entry = wrapper->child;
    }
  };
  forget(root);
  for (const auto& module : root.modules(false)) forget(*module);
}

}  // namespace detail
}  // namespace dtensor
