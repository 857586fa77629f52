#include "parallelize/parallelize_module.h"

#include "dtensor/deferred_build.h"
#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "parallelize/apply_plan.h"
#include "parallelize/did_you_mean.h"
#include "parallelize/gradient_synchronization.h"
#include "parallelize/lowering.h"
#include "parallelize/optimizer_state.h"
#include "parallelize/plan_agreement.h"
#include "parallelize/points.h"
#include "placements/error.h"
#include "placements/shard_math.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace dtensor {
namespace {

AppliedTensor describe_applied(const detail::LoweredTensor& entry, const ParallelPlan& plan) {
  const auto& data = detail::meta(entry.source.tensor);
  AppliedTensor applied;
  applied.name = entry.source.name;
  applied.aliases = entry.source.aliases;
  applied.sizes = entry.source.sizes;
  applied.local_sizes = data.local.sizes().vec();
  applied.placements = data.layout->placements();
  applied.bytes = entry.source.tensor.numel() * entry.source.element_size;
  applied.local_bytes = static_cast<std::int64_t>(data.local.nbytes());
  if (entry.rule) applied.rule = plan.rules[*entry.rule].match;
  applied.buffer = entry.source.buffer;
  return applied;
}

// set_data, for tensors without memory too: it refuses them as of another type, though what it does then is the same.
void replace(at::Tensor& tensor, const at::Tensor& placed) {
  if (!tensor.is_meta()) return tensor.set_data(placed);
  if (auto* data = torch::autograd::impl::get_autograd_meta(tensor)) data->grad_accumulator_.reset();
  tensor.unsafeGetTensorImpl()->shallow_copy_from(placed.getIntrusivePtr());
}

// `set_data` turns the parameter into a DTensor in place: the typed member, the registered slot and the optimizer see
// it at once. Its gradient, if there is one, is placed alike.
// `deferred`: its value already, for a tensor without memory.
void convert(detail::LoweredTensor& entry, const at::Tensor& deferred, const DeviceMesh& mesh, const ApplyOptions& options) {
  at::Tensor& tensor = entry.source.tensor;
  const at::Tensor placed =
      deferred.defined() ? deferred : distribute_tensor(tensor.detach(), mesh, entry.placements, {options.source});
  if (!entry.wishes.empty())
    detail::meta(placed).wishes = std::make_shared<const std::vector<Wish>>(entry.wishes);
  at::Tensor gradient = tensor.grad();
  tensor.mutable_grad() = at::Tensor();
  replace(tensor, placed);
  if (gradient.defined())
    tensor.mutable_grad() = distribute_tensor(gradient.detach(), mesh, entry.placements, {options.source});
  for (auto& member : entry.source.members) replace(member, placed);
}

void prepare(const detail::LoweredPoint& point, const ModuleDescription& description, const DeviceMesh& mesh,
             const ParallelPlan& plan) {
  const auto& module = description.modules[point.module];
  std::vector<int> tp;
  for (const auto& name : plan.tensor_parallel_dims) tp.push_back(mesh.layout().dim(name));
  if (point.by_sequential)
    detail::prepare_child(*module.parent, *module.module, mesh, tp, point.points);
  else
    detail::prepare_points(*module.module, mesh, tp, point.points);
}

// The values of tensors without memory, in the order of `tensors`; undefined for the others.
std::vector<at::Tensor> deferred_values(const std::vector<detail::LoweredTensor>& tensors, const DeviceMesh& mesh,
                                        const DeferredBuild* deferred) {
  std::vector<at::Tensor> result(tensors.size()), without_memory;
  std::vector<Placements> placements;
  for (const auto& entry : tensors)
    if (entry.source.tensor.is_meta()) {
      without_memory.push_back(entry.source.tensor);
      placements.push_back(entry.placements);
    }
  if (without_memory.empty()) return result;
  const auto values = deferred->materialize(without_memory, mesh, placements);
  std::size_t next = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].source.tensor.is_meta()) result[i] = values[next++];
  return result;
}

void check_memory(const ModuleDescription& description, const ApplyOptions& options) {
  for (const auto& entry : description.tensors)
    if (entry.tensor.is_meta() && !options.deferred)
      throw UnsupportedError(fmt::format("parallelize_module: \"{}\" has no memory (device meta). Build the module with "
                                         "DeferredBuild and pass that as ApplyOptions::deferred.",
                                         entry.name));
}

// The plan's mesh and dimensions against the mesh given.
std::vector<PlanFault> mesh_faults(const ParallelPlan& plan, const MeshLayout& mesh) {
  std::vector<PlanFault> faults;
  const auto fault = [&](std::string asked, std::string nearest, const std::string& problem) {
    PlanFault found;
    found.kind = FaultKind::mesh;
    found.asked = std::move(asked);
    found.nearest = std::move(nearest);
    faults.push_back(detail::worded(std::move(found), problem));
  };
  if (plan.mesh && plan.mesh->names != mesh.names())
    fault(fmt::format("mesh [{}]", fmt::join(plan.mesh->names, ", ")),
          fmt::format("mesh [{}]", fmt::join(mesh.names(), ", ")),
          fmt::format("the plan's mesh has dimensions [{}], the mesh given has [{}]",
                      fmt::join(plan.mesh->names, ", "), fmt::join(mesh.names(), ", ")));
  else if (plan.mesh)
    for (std::size_t i = 0; i < plan.mesh->shape.size(); ++i)
      if (plan.mesh->shape[i] != -1 && plan.mesh->shape[i] != mesh.shape()[i])
        fault(fmt::format("size {}", plan.mesh->shape[i]), fmt::format("size {}, or -1", mesh.shape()[i]),
              fmt::format("mesh dimension \"{}\" has size {} in the plan and {} in the mesh given",
                          plan.mesh->names[i], plan.mesh->shape[i], mesh.shape()[i]));
  const auto unknown = [&](const char* who, const std::string& dim) {
    fault("mesh dimension \"" + dim + "\"", detail::nearest(dim, mesh.names()),
          fmt::format("{} of mesh dimension \"{}\", but the mesh {} has none of that name", who, dim,
                      mesh.to_string()));
  };
  for (const auto& dim : plan.tensor_parallel_dims)
    if (!plan.rules.empty() && !mesh.find_dim(dim)) unknown("the rules speak", dim);
  if (plan.data_parallel && !mesh.find_dim(plan.data_parallel->dim))
    unknown("data_parallel speaks", plan.data_parallel->dim);
  return faults;
}

}  // namespace

DeviceMesh make_mesh(const ParallelPlan& plan, World& world, c10::DeviceType device_type) {
  if (!plan.mesh)
    throw PlanError({"the plan has no \"mesh\": add one, or pass a mesh of your own to parallelize_module"});
  auto* former = World::exchange_current(&world);
  struct Restore {
    World* world;
    ~Restore() { World::exchange_current(world); }
  } restore{former};
  std::int64_t known = 1;
  for (auto size : plan.mesh->shape)
    if (size != -1) known *= size;
  const bool open = std::find(plan.mesh->shape.begin(), plan.mesh->shape.end(), -1) != plan.mesh->shape.end();
  if (open ? world.size() % known != 0 : known != world.size())
    throw MeshError(
        fmt::format("the plan's mesh [{}] of shape [{}] needs {}{} ranks, but the world has {}. Start {} "
                    "ranks, or change the shape (one "
                    "size may be -1: what is left of the world).",
                    fmt::join(plan.mesh->names, ", "), fmt::join(plan.mesh->shape, ", "),
                    open ? "a multiple of " : "", known, world.size(), known));
  return init_device_mesh(device_type, plan.mesh->shape, plan.mesh->names);
}

DeviceMesh ParallelPlan::make_mesh(World& world) const { return dtensor::make_mesh(*this, world); }

namespace detail {

ApplyReport apply_plan(const ModuleDescription& description, const void* owner, const DeviceMesh& mesh,
                       const ParallelPlan& plan, const ApplyOptions& options) {
  auto faults = mesh_faults(plan, mesh.layout());
  const PlanMesh sizes{mesh.layout().names(), mesh.layout().shape()};
  auto lowered =
      lower(description, sizes, plan, {options.heads, options.kv_heads, options.sequence, options.batch});
  faults.insert(faults.end(), lowered.faults.begin(), lowered.faults.end());
  if (!faults.empty()) throw PlanError(texts(faults));
  if (c10::InferenceMode::is_enabled())
    throw UnsupportedError(
        "parallelize_module: inference mode is on. Apply the plan outside it: parameters made in inference "
        "mode cannot be trained.");
  check_memory(description, options);
  check_agreement(plan, description, mesh);
  const at::NoGradGuard no_grad;
  ApplyReport report;
  report.notes = lowered.notes;
  report.tensors.reserve(lowered.tensors.size());
  const auto values = deferred_values(lowered.tensors, mesh, options.deferred);
  for (std::size_t i = 0; i < lowered.tensors.size(); ++i) {
    auto& entry = lowered.tensors[i];
    convert(entry, values[i], mesh, options);
    report.tensors.push_back(describe_applied(entry, plan));
  }
  for (const auto& point : lowered.points) prepare(point, description, mesh, plan);
  for (auto* optimizer : options.optimizers) distribute_optimizer_state(*optimizer, options.source);
  at::autocast::clear_cache();  // it may hold casts of the former parameters
  std::vector<at::Tensor> parameters;
  parameters.reserve(lowered.tensors.size());
  for (const auto& entry : lowered.tensors)
    if (!entry.source.buffer) parameters.push_back(entry.source.tensor);
  install_gradient_synchronization(owner, parameters, mesh, plan.data_parallel);
  Policy policy;
  policy.plain_tensors = PlainTensors::replicate_checked;
  mesh.world().set_policy(plan.policy.value_or(policy));
  return report;
}

World* undo_plan(ModuleDescription& description, const void* owner,
                 const std::vector<torch::optim::Optimizer*>& optimizers) {
  const at::NoGradGuard no_grad;
  World* world = nullptr;
  for (auto& entry : description.tensors) {
    if (!entry.is_dtensor) continue;
    const DTensor placed(entry.tensor.detach());
    if (!world) world = &placed.mesh().world();
    const auto whole = placed.full_tensor();
    at::Tensor gradient = entry.tensor.grad();
    entry.tensor.mutable_grad() = at::Tensor();
    entry.tensor.set_data(whole);
    if (gradient.defined())
      entry.tensor.mutable_grad() =
          is_dtensor(gradient) ? DTensor(gradient.detach()).full_tensor() : gradient;
    for (auto& member : entry.members) member.set_data(whole);
  }
  for (auto* optimizer : optimizers) gather_optimizer_state(*optimizer);
  if (!world) return nullptr;
  at::autocast::clear_cache();
  remove_gradient_synchronization(owner, *world);
  return world;
}

}  // namespace detail

ApplyReport parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                               const ApplyOptions& options) {
  return detail::apply_plan(describe(module), &module, mesh, plan, options);
}

void unparallelize(torch::nn::Module& module, const std::vector<torch::optim::Optimizer*>& optimizers) {
  auto description = describe(module);
  if (auto* world = detail::undo_plan(description, &module, optimizers)) detail::forget_points(module, *world);
}

}  // namespace dtensor
