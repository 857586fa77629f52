#include "dtensor/geometry.h"

#include "placements/error.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// The call on tensors of zeros with the global sizes.
torch::jit::Stack run_on_zeros(Call& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> zeros(call.tensors.size());
  for (std::size_t i = 0; i < zeros.size(); ++i)
    if (call.operands[i].defined)
      zeros[i] = at::zeros(call.operands[i].sizes,
                           at::TensorOptions(call.mesh->device).dtype(call.operands[i].dtype));
  torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
  Call copy(call.info, stack);
  copy.set_tensors(zeros);
  call.info.handle.callBoxed(stack);
  return stack;
}

bool has_empty_operand(const Call& call) {
  return std::any_of(call.operands.begin(), call.operands.end(), [](const Operand& operand) {
    return operand.defined && c10::multiply_integers(operand.sizes) == 0;
  });
}

// The call on meta tensors: its results, or nothing where the operator has no meta kernel.
std::optional<torch::jit::Stack> run_on_meta(Call& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> metas(call.tensors.size());
  for (std::size_t i = 0; i < metas.size(); ++i) {
    const auto& operand = call.operands[i];
    if (!operand.defined) continue;
    metas[i] = at::empty_strided(operand.sizes, operand.strides, call.tensors[i].options().device(at::kMeta));
    if (call.tensors[i].unsafeGetTensorImpl()->is_wrapped_number())
      metas[i].unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
  Call copy(call.info, stack);
  copy.set_tensors(metas);
  for (std::size_t i = 0; i < call.info.arguments.size(); ++i)
    if (call.info.handle.schema().arguments()[i].name() == "device" && !stack[i].isNone())
      stack[i] = at::Device(at::kMeta);
  try {
    call.info.handle.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  } catch (const c10::Error&) {
    // Some meta kernels refuse empty tensors that the operator itself takes (index_add with no index).
    if (!has_empty_operand(call)) throw;
    return run_on_zeros(call);
  }
  return stack;
}

// The results with global geometry and any values: on meta tensors, or on zeros where the operator has no meta kernel.
std::optional<torch::jit::Stack> run_without_values(Call& call) {
  if (auto stack = run_on_meta(call)) return stack;
  try {
    return run_on_zeros(call);
  } catch (const c10::Error&) {  // an operator that minds zeros
    return std::nullopt;
  }
}

std::vector<at::Tensor> tensors_of(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : stack) {
    if (value.isTensor())
      tensors.push_back(value.toTensor());
    else if (value.isTensorList())
      for (const auto& tensor : value.toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace

void fill_geometry(Call& call, Decision& decision) {
  bool sharded = decision.moves || decision.slices_plain;
  for (const auto& result : decision.results) sharded = sharded || result.layout->is_sharded();
  if (!sharded || call.info.whole_values) return;
  const auto stack = run_on_meta(call);
  if (!stack || call.info.in_place) return;
  const auto tensors = tensors_of(*stack);
  TORCH_INTERNAL_ASSERT(tensors.size() == decision.results.size(), call.info.name, ": the rule tells of ",
                        decision.results.size(), " results, the operator has ", tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& result = decision.results[i];
    if (!tensors[i].defined()) continue;
    if (!result.layout->is_sharded()) {
      // A result that every rank computes whole, from operands that moved: they are row-major now.
      if (decision.moves && !decision.view && tensors[i].is_non_overlapping_and_dense())
        result.memory_order = memory_order(tensors[i].sizes(), tensors[i].strides());
      continue;
    }
    TORCH_INTERNAL_ASSERT(result.layout->max_dim() < tensors[i].dim(), call.info.name, ": result ", i,
                          " has ", tensors[i].dim(), " dimensions but is placed ",
                          result.layout->to_string());
    if (decision.view && !decision.by_sizes) continue;  // its strides come from those of the operand
    if (decision.view) {
      result.sizes = tensors[i].sizes().vec();
      result.strides = tensors[i].strides().vec();
    } else if (!tensors[i].is_contiguous()) {
      result.memory_order = memory_order(tensors[i].sizes(), tensors[i].strides());
    }
  }
}

std::optional<torch::jit::Stack> empty_results(Call& call, const Decision& decision) {
  auto global = run_without_values(call);
  if (!global) return std::nullopt;
  std::size_t next = 0;
  const auto localize = [&](const at::Tensor& whole) -> std::optional<at::Tensor> {
    if (next >= decision.results.size()) return std::nullopt;
    const auto& result = decision.results[next++];
    if (!whole.defined() || !result.defined) return at::Tensor();
    const auto sizes = shard_math::local_sizes(*result.layout, whole.sizes(), call.mesh->coordinate);
    if (c10::multiply_integers(sizes) != 0) return std::nullopt;
    return at::empty(sizes, whole.options().device(call.mesh->device));
  };
  for (auto& value : *global) {
    if (value.isTensor()) {
      auto local = localize(value.toTensor());
      if (!local) return std::nullopt;
      value = *local;
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& whole : value.toTensorVector()) {
        auto local = localize(whole);
        if (!local) return std::nullopt;
        list.push_back(*local);
      }
      value = std::move(list);
    } else {
      return std::nullopt;
    }
  }
  return global;
}

void check_shapes(Call& call) {
  // Not other composite kernels than those of views: they may read values.
  if (!call.info.in_place &&
      (call.info.view || call.info.handle.hasKernelForDispatchKey(c10::DispatchKey::Meta)))
    run_on_meta(call);
}

void throw_shape_error(Call& call) {
  run_on_meta(call);
  throw PlacementError(fmt::format("{}: the operands' sizes do not fit each other", call.where()));
}

}  // namespace dtensor::detail
