#include "dtensor/fallback.h"

#include "dtensor/dispatch.h"
#include "dtensor/redistribute.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <map>

namespace dtensor::detail {
namespace {

struct FallbackCounts {
  std::map<std::string, std::int64_t> counts;
};

// Also the running statistics that a normalisation writes without a mark in its schema.
bool is_written(const Call& call, std::size_t operand) {
  if (call.operands[operand].written) return true;
  if (!call.info.mutates_unmarked) return false;
  const auto argument = static_cast<std::size_t>(call.operands[operand].argument);
  return call.info.handle.schema().arguments()[argument].name().rfind("running_", 0) == 0;
}

}  // namespace

void admit_fallback(const Call& call) {
  if (call.info.random)
    throw UnsupportedError(
        fmt::format("{} draws random numbers and has no distributed form yet: on replicated inputs every "
                    "rank would draw its own. "
                    "Draw on a plain tensor that is the same on all ranks and distribute_tensor it.",
                    call.where()));
  World& world = *call.mesh->world;
  const auto count = ++world.slot<FallbackCounts>().counts[call.info.name];
  switch (world.policy().fallback) {
    case Fallback::allow:
      return;
    case Fallback::warn:
      if (count == 1 && world.rank() == 0)
        TORCH_WARN("dtensor: ", call.info.name,
                   " has no rule for this call and runs on replicated inputs: ", call.to_string());
      return;
    case Fallback::error:
      throw UnsupportedError(
          fmt::format("{} has no rule for this call and would run on replicated inputs, which the policy "
                      "refuses (fallback: error). "
                      "Register a rule, replicate the inputs yourself, or allow it with PolicyGuard.",
                      call.where()));
  }
}

std::vector<std::pair<std::string, std::int64_t>> fallback_counts(World& world) {
  const auto& counts = world.slot<FallbackCounts>().counts;
  return {counts.begin(), counts.end()};
}

void check_written_operands(const Call& call, const Decision& decision) {
  for (std::size_t i = 0; i < call.operands.size(); ++i)
    if (is_written(call, i) && call.operands[i].layout && call.operands[i].layout->has_partial() &&
        decision.operands[i] != call.operands[i].layout)
      throw UnsupportedError(fmt::format(
          "{} would write through a pending value (argument {}). Reduce it first: x = x.redistribute(...).",
          call.where(), call.operands[i].argument));
}

void write_moved_operands(const Call& call, const Decision& decision, c10::ArrayRef<at::Tensor> locals) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (std::size_t i = 0; i < locals.size(); ++i) {
    const Layout *layout = call.operands[i].layout, *moved = decision.operands[i];
    if (!is_written(call, i) || !moved || moved == layout) continue;
    if (layout) {
      const Meta& data = meta(call.tensors[i]);
      data.local.copy_(move_local(locals[i], moved, layout, call.tensors[i].sizes(), *data.mesh, true));
    } else if (!moved->is_replicated()) {  // a plain tensor, of which this rank wrote a part
      call.tensors[i].copy_(
          move_local(locals[i], moved, moved->replicated(), call.tensors[i].sizes(), *call.mesh, true));
    }
  }
}

void run_in_place_replicated(Call& call) {
  for (std::size_t i = 0; i < call.operands.size(); ++i)
    if (call.operands[i].written && call.operands[i].layout && call.operands[i].layout->has_partial())
      throw UnsupportedError(
          fmt::format("{} would write through a pending value (argument {}). Reduce it first: x = "
                      "x.redistribute(...), or use the "
                      "out-of-place form.",
                      call.where(), call.operands[i].argument));
  admit_fallback(call);
  const Layout* replicated =
      Layout::of(call.mesh->layout, Placements(static_cast<std::size_t>(call.mesh->layout->ndim())));
  std::vector<at::Tensor> locals(call.tensors.size());
  for (std::size_t i = 0; i < locals.size(); ++i) {
    if (!call.tensors[i].defined()) continue;
    locals[i] = call.tensors[i];
    if (!call.operands[i].layout) continue;
    const Meta& data = meta(call.tensors[i]);
    CollectiveReason reason("implicit move");
    locals[i] = move_local(data.local, data.layout, replicated, call.tensors[i].sizes(), *data.mesh,
                           !call.operands[i].written);
  }
  const auto returned = call.info.return_alias;
  call.set_tensors(locals);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    call.info.handle.callBoxed(call.stack);
  }
  for (std::size_t i = 0; i < locals.size(); ++i)
    TORCH_CHECK(
        !call.operands[i].written || locals[i].sizes() == call.tensors[i].sizes(), call.info.name,
        " changes the size of a DTensor in place, which is not supported: build a new tensor instead");
  for (std::size_t i = 0; i < locals.size(); ++i) {
    if (!call.operands[i].written || !call.operands[i].layout) continue;
    const Meta& data = meta(call.tensors[i]);
    data.local.copy_(
        move_local(locals[i], replicated, data.layout, call.tensors[i].sizes(), *data.mesh, true));
  }
  call.stack.resize(call.base);
  for (std::size_t i = 0; i < returned.size(); ++i) call.stack.emplace_back(call.tensors[0]);
}

bool run_in_place_view(Call& call) {
  const at::Tensor self = call.tensors[0];
  const auto functional = functional_form(call.info);
  if (!functional || !operator_info(*functional).view || call.info.reads_strides) return false;
  torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
  dispatch(operator_info(*functional), stack);
  const at::Tensor result = stack[0].toTensor();
  Meta &target = meta(self), &source = meta(result);
  // Had the view to move data, the wrapper's placements would change under its aliases.
  if (source.gathered && !target.gathered)
    throw UnsupportedError(
        fmt::format("{} would have to move the tensor in place, and other tensors may share it. Use the "
                    "out-of-place form.",
                    call.where()));
  target.local = source.local;
  target.layout = source.layout;
  target.memo.reset();
  self.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  call.stack.resize(call.base);
  call.stack.emplace_back(self);
  return true;
}

void run_set(Call& call) {
  const at::Tensor self = call.tensors[0], source = call.tensors[1];
  if (!is_dtensor(self))
    throw UnsupportedError(fmt::format(
        "{}: a plain tensor cannot take the memory of a DTensor; use full_tensor()", call.where()));
  TORCH_CHECK(source.sizes() == self.sizes() && source.scalar_type() == self.scalar_type(), call.where(),
              ": the sizes or dtype of a DTensor cannot be set in place");
  static const OperatorInfo& copy = operator_info("aten::copy_", "");
  torch::jit::Stack stack{self, source, false};
  dispatch(copy, stack);
  call.stack.resize(call.base);
  call.stack.emplace_back(self);
}

void run_out_variant(Call& call) {
  const auto functional = functional_form(call.info);
  if (!functional)
    throw UnsupportedError(
        fmt::format("{} has no functional form that could write into a DTensor: call the form without "
                    "out= and copy the result.",
                    call.where()));
  // Of others, autograd's own kernel has checked this before.
  const bool above_autograd =
      call.info.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  for (const auto& tensor : call.tensors)
    TORCH_CHECK(
        !above_autograd || !at::GradMode::is_enabled() || !tensor.defined() || !tensor.requires_grad(),
        call.info.name,
        ": functions with out=... arguments don't support automatic differentiation, but one of the "
        "arguments "
        "requires grad.");
  torch::jit::Stack inputs;
  std::vector<at::Tensor> outs;
  for (std::size_t i = 0; i < call.info.arguments.size(); ++i) {
    const auto& value = call.stack[call.base + i];
    if (!call.info.written[i]) {
      inputs.push_back(value);
      continue;
    }
    TORCH_CHECK(value.isTensor(), call.info.name, ": a list of out= tensors is not supported for DTensors");
    outs.push_back(value.toTensor());
  }
  for (std::size_t j = inputs.size(); j < functional->schema().arguments().size(); ++j)
    inputs.push_back(*functional->schema().arguments()[j].default_value());
  for (const auto& out : outs)
    if (!is_dtensor(out))
      throw UnsupportedError(
          fmt::format("{}: out= is a plain tensor; give a DTensor on the same mesh", call.where()));
  functional->callBoxed(inputs);
  call.stack.resize(call.base);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const auto result = inputs[i].toTensor();
    TORCH_CHECK(result.sizes() == outs[i].sizes(), call.info.name, ": out= has sizes ", outs[i].sizes(),
                ", the result has ", result.sizes(), "; DTensors are not resized");
    outs[i].copy_(result);
    call.stack.emplace_back(outs[i]);
  }
}

}  // namespace dtensor::detail
