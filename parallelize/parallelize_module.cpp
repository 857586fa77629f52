#include "parallelize/parallelize_module.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "parallelize/gradient_synchronization.h"
#include "parallelize/lowering.h"
#include "placements/error.h"
#include "placements/shard_math.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace dtensor {
namespace {

AppliedTensor describe(const detail::LoweredTensor& entry) {
  const auto& data = detail::meta(entry.tensor);
  AppliedTensor applied;
  applied.name = entry.name;
  applied.aliases = entry.aliases;
  applied.sizes = entry.tensor.sizes().vec();
  applied.local_sizes = data.local.sizes().vec();
  applied.placements = data.layout->placements();
  applied.bytes = entry.tensor.numel() * static_cast<std::int64_t>(entry.tensor.element_size());
  applied.local_bytes = static_cast<std::int64_t>(data.local.nbytes());
  applied.rule = entry.rule;
  applied.buffer = entry.buffer;
  return applied;
}

// `set_data` turns the parameter into a DTensor in place: the typed member, the registered slot and the optimizer see it
// at once. Its gradient, if there is one, is placed alike.
void convert(detail::LoweredTensor& entry, const DeviceMesh& mesh, const ApplyOptions& options) {
  const auto placed = distribute_tensor(entry.tensor.detach(), mesh, entry.placements, {options.source});
  if (!entry.wishes.empty())
    detail::meta(placed).wishes = std::make_shared<const std::vector<Wish>>(entry.wishes);
  at::Tensor gradient = entry.tensor.grad();
  entry.tensor.mutable_grad() = at::Tensor();
  entry.tensor.set_data(placed);
  if (gradient.defined())
    entry.tensor.mutable_grad() = distribute_tensor(gradient.detach(), mesh, entry.placements, {options.source});
  for (auto& member : entry.members) member.set_data(placed);
}

}  // namespace

DeviceMesh make_mesh(const ParallelPlan& plan, World& world, c10::DeviceType device_type) {
  if (!plan.mesh) throw PlanError({"the plan has no \"mesh\": add one, or pass a mesh of your own to parallelize_module"});
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
    throw MeshError(fmt::format(
        "the plan's mesh [{}] of shape [{}] needs {}{} ranks, but the world has {}. Start {} ranks, or change the shape (one "
        "size may be -1: what is left of the world).",
        fmt::join(plan.mesh->names, ", "), fmt::join(plan.mesh->shape, ", "), open ? "a multiple of " : "", known,
        world.size(), known));
  return init_device_mesh(device_type, plan.mesh->shape, plan.mesh->names);
}

DeviceMesh ParallelPlan::make_mesh(World& world) const { return dtensor::make_mesh(*this, world); }

ApplyReport parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                               ApplyOptions options) {
  auto lowered = detail::lower(module, mesh.layout(), plan, options);
  if (!lowered.faults.empty()) throw PlanError(std::move(lowered.faults));
  if (c10::InferenceMode::is_enabled())
    throw UnsupportedError("parallelize_module: inference mode is on. Apply the plan outside it: parameters made in inference "
                           "mode cannot be trained.");
  const at::NoGradGuard no_grad;
  ApplyReport report;
  report.notes = lowered.notes;
  for (auto& entry : lowered.tensors) {
    convert(entry, mesh, options);
    report.tensors.push_back(describe(entry));
  }
  at::autocast::clear_cache();  // it may hold casts of the former parameters
  std::vector<at::Tensor> parameters;
  for (const auto& entry : lowered.tensors)
    if (!entry.buffer) parameters.push_back(entry.tensor);
  detail::install_gradient_synchronization(module, parameters, mesh, plan.data_parallel);
  Policy policy;
  policy.plain_tensors = PlainTensors::replicate_checked;
  mesh.world().set_policy(plan.policy.value_or(policy));
  return report;
}

std::int64_t ApplyReport::bytes() const {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.bytes;
  return sum;
}
std::int64_t ApplyReport::local_bytes() const {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.local_bytes;
  return sum;
}
std::int64_t ApplyReport::replicated_bytes() const {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors)
    if (tensor.local_bytes == tensor.bytes) sum += tensor.bytes;
  return sum;
}

std::string ApplyReport::to_string() const {
  std::string text = fmt::format("{:<32} {:<16} {:<28} {:<16} {:>12}  {}\n", "tensor", "global", "placements", "this rank",
                                 "bytes", "rule");
  for (const auto& tensor : tensors)
    text += fmt::format("{:<32} {:<16} {:<28} {:<16} {:>12}  {}\n", tensor.name,
                        fmt::format("[{}]", fmt::join(tensor.sizes, ", ")), dtensor::to_string(tensor.placements),
                        fmt::format("[{}]", fmt::join(tensor.local_sizes, ", ")), tensor.local_bytes,
                        tensor.rule.empty() ? "-" : tensor.rule);
  text += fmt::format("{} bytes of {} on this rank, {} of them held by every rank\n", local_bytes(), bytes(),
                      replicated_bytes());
  for (const auto& note : notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace dtensor
