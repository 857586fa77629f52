#include "dtensor/plain_tensors.h"

#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace dtensor::detail {
namespace {

// Uses that were compared already; one set per World.
struct CheckedUses {
  std::set<std::string> seen;
};

std::int64_t checksum(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto data = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  const std::string_view bytes(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
  return static_cast<std::int64_t>(std::hash<std::string_view>()(bytes) ^ static_cast<std::size_t>(tensor.scalar_type()));
}

void compare_over_mesh(const Call& call, std::size_t index) {
  const auto& operand = call.operands[index];
  auto& uses = call.mesh->world->slot<CheckedUses>();
  const auto use = fmt::format("{} {} [{}] {}", call.info.name, operand.argument, fmt::join(operand.sizes, ","),
                               call.mesh->layout->to_string());
  if (!uses.seen.insert(use).second) return;
  const CollectiveReason reason("check");
  const auto options = at::TensorOptions().dtype(at::kLong).device(call.mesh->device);
  for (int mesh_dim = 0; mesh_dim < call.mesh->layout->ndim(); ++mesh_dim) {
    const auto ranks = call.mesh->layout->size(mesh_dim);
    if (ranks == 1) continue;
    const auto mine = at::full({1}, checksum(call.tensors[index]), options);
    std::vector<at::Tensor> all;
    for (std::int64_t i = 0; i < ranks; ++i) all.push_back(at::empty({1}, options));
    call.mesh->group(mesh_dim).all_gather(all, mine).wait();
    for (const auto& other : all)
      if (!at::equal(other, mine))
        throw DesyncError(fmt::format(
            "{}: argument {} is a plain tensor whose values differ between ranks along mesh dimension {}. A plain tensor "
            "counts as replicated: make it the same on all ranks, or bring per-rank data in with from_local().",
            call.where(), call.info.handle.schema().arguments()[static_cast<std::size_t>(operand.argument)].name(),
            call.mesh->layout->names()[static_cast<std::size_t>(mesh_dim)]));
  }
}

}  // namespace

void admit_plain_operands(const Call& call) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const auto& operand = call.operands[i];
    if (!operand.defined || operand.layout) continue;
    const auto name = [&] { return call.info.handle.schema().arguments()[static_cast<std::size_t>(operand.argument)].name(); };
    if (operand.written && !call.info.mutates_unmarked)
      throw UnsupportedError(fmt::format(
          "{}: would write a distributed result into the plain tensor '{}'. Make it a DTensor first "
          "(distribute_tensor, or zeros(sizes, mesh, placements)), or read the value with full_tensor().",
          call.where(), name()));
    if (at::GradMode::is_enabled() && call.tensors[i].requires_grad())
      throw UnsupportedError(fmt::format(
          "{}: argument '{}' is a plain tensor that requires grad. Its gradient would be a DTensor: bring it in with "
          "distribute_tensor(tensor, mesh, placements), which is differentiable.",
          call.where(), name()));
    if (operand.ndim() == 0 || in_backward) continue;  // plain zeros made by backward formulas are the same everywhere
    // copy_(dtensor, plain full tensor) means distribute; torch::load needs it.
    if (call.info.name == "aten::copy_") continue;
    if (call.mesh->world->policy().plain_tensors == PlainTensors::error)
      throw UnsupportedError(fmt::format(
          "{}: argument '{}' is a plain tensor. Say how it is placed: distribute_tensor(tensor, mesh, placements) for a "
          "tensor that is the same on all ranks, from_local for this rank's part; or set the policy "
          "plain_tensors: replicate_checked.",
          call.where(), name()));
    compare_over_mesh(call, i);
  }
}

}  // namespace dtensor::detail
