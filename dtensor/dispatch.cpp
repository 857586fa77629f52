#include "dtensor/dispatch.h"

#include "dtensor/autocast_scope.h"
#include "dtensor/call.h"
#include "dtensor/decision_cache.h"
#include "dtensor/decision_key.h"
#include "dtensor/element_wise_lists.h"
#include "dtensor/explain.h"
#include "dtensor/fallback.h"
#include "dtensor/geometry.h"
#include "dtensor/leaf_hook.h"
#include "dtensor/plain_tensors.h"
#include "dtensor/redistribute.h"
#include "dtensor/shared_move.h"
#include "ops/kernel_context.h"
#include "placements/error.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dtensor::detail {
namespace {

constexpr auto above_backends = c10::autograd_dispatch_keyset_with_ADInplaceOrView;

// A view that had to move data does not alias its base: it may be read only while the base is as it was.
void check_gathered(const Call& call) {
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    if (!call.operands[i].layout) continue;
    const Meta& data = meta(call.tensors[i]);
    if (!data.gathered) continue;
    if (call.operands[i].written)
      throw UnsupportedError(
          fmt::format("{}: argument {} is a view that had to move data, so writing to it would not reach the "
                      "tensor it came from. "
                      "Write to the base, or clone() the view first.",
                      call.where(), i));
    if (data.base_version != static_cast<std::int64_t>(call.tensors[i]._version()))
      throw UnsupportedError(
          fmt::format("{}: argument {} is a view that had to move data, and the tensor it came from was "
                      "changed in place since. Take "
                      "the view anew.",
                      call.where(), i));
  }
}

std::shared_ptr<const Decision> make_decision(Call& call) {
  const OperatorCall description = call.describe();
  std::shared_ptr<Decision> decision;
  std::optional<Rule> rule;
  if (call.info.rule && call.info.rule->function) rule = call.info.rule->function(description);
  if (rule) decision = decide(description, *rule, call.info.in_place);
  if (!decision) {
    decision = decide_fallback(description);
    decision->view = call.info.view;
  }
  const bool strides_told = std::all_of(decision->results.begin(), decision->results.end(), [](const auto& result) {
    return !result.view_dims.empty() || result.size_sources.empty();  // or it has no dimensions
  });
  if (decision->view && (decision->fallback || decision->moves || !strides_told)) decision->by_sizes = true;
  if (!decision->fallback) fill_geometry(call, *decision);
  return decision;
}

// Whether operand dimensions that the decision takes for equal are.
bool sizes_fit(const Call& call, const Decision& decision) {
  for (const auto& places : decision.equal_sizes) {
    const auto size = [&](const SizeSource& place) {
      return call.operands[static_cast<std::size_t>(place.operand)]
          .sizes[static_cast<std::size_t>(place.dim)];
    };
    for (std::size_t i = 1; i < places.size(); ++i)
      if (size(places[i]) != size(places[0])) return false;
  }
  return true;
}

std::shared_ptr<const Decision> find_decision(Call& call) {
  auto& cache = DecisionCache::instance();
  DecisionKey key;
  pack_key(call, key);
  auto decision = cache.find(key);
  // Sizes that do not fit may mean an error, or another form of the operator (fewer key heads than query heads), which has
  // a decision of its own.
  if (decision && !decision->by_sizes && sizes_fit(call, *decision)) return decision;
  if (!decision) {
    decision = make_decision(call);
    // Under the short key a decision by sizes only says that the long key must be asked.
    cache.insert(key, decision);
    if (!decision->by_sizes) return decision;
    pack_sizes(call, key);
    cache.insert(key, decision);
    return decision;
  }
  pack_sizes(call, key);
  if (auto sized = cache.find(key)) return sized;
  decision = make_decision(call);
  cache.insert(key, decision);
  return decision;
}

void check_moves(const Call& call, const Decision& decision) {
  if (!decision.moves || call.mesh->world->policy().implicit_moves == ImplicitMoves::allow) return;
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const Layout *from = call.operands[i].layout, *to = decision.operands[i];
    if (!from || !to || from == to) continue;
    throw UnsupportedError(
        fmt::format("{} would have to move argument {} from {} to {}, which the policy refuses "
                    "(implicit_moves: error). Redistribute "
                    "it yourself, or allow it with PolicyGuard.",
                    call.where(), i, to_string(from->placements()), to_string(to->placements())));
  }
}

// The same values, dense, with dimensions in this order in memory.
at::Tensor in_memory_order(const at::Tensor& local, const std::vector<int>& wanted) {
  if (memory_order(local.sizes(), local.strides()) == wanted && local.is_non_overlapping_and_dense())
    return local;
  std::vector<std::int64_t> order(wanted.begin(), wanted.end()), back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return local.permute(order).contiguous().permute(back);
}

// The local tensors the decision asks for.
void local_tensors(const Call& call, const Decision& decision, c10::SmallVectorImpl<at::Tensor>& locals) {
  const CollectiveReason reason("implicit move");
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const at::Tensor& tensor = call.tensors[i];
    const Layout* to = decision.operands[i];
    if (!tensor.defined()) {
      locals.emplace_back();
    } else if (!call.operands[i].layout) {
      // A plain tensor is the same on all ranks: replicated.
      locals.push_back(to ? move_local(tensor, to->replicated(), to, tensor.sizes(), *call.mesh, true)
                          : tensor);
    } else {
      const Meta& data = meta(tensor);
      if (!to || to == data.layout) {
        locals.push_back(data.local);
        continue;
      }
      locals.push_back(move_local(data.local, data.layout, to, tensor.sizes(), *data.mesh, true));
      // What moved is row-major; a view of it has the strides that it would have of the tensor itself.
      if (decision.view && !tensor.is_contiguous())
        locals.back() = in_memory_order(locals.back(), memory_order(tensor.sizes(), tensor.strides()));
    }
  }
}

// as_strided and its kin speak of the operand's memory. A part that moved is row-major: it gets the strides that the
// operand has globally. One that did not may start anywhere in its storage, whereas a wrapper's offset is always 0.
void restore_strides(const Call& call, const Decision& decision, at::Tensor& local) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& operand = call.operands[0];
  if (decision.operands[0] && decision.operands[0] != operand.layout) {
    if (local.strides() == operand.strides) return;
    auto arranged = at::empty_strided(operand.sizes, operand.strides, local.options());
    arranged.copy_(local);
    local = arranged;
  } else if (local.storage_offset() != 0) {
    const auto& arguments = call.info.handle.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = call.stack[call.base + i];
      if (arguments[i].name() == "storage_offset" && value.isInt())
        value = value.toInt() + local.storage_offset();
    }
  }
}

void check_device(const Call& call) {
  if (call.info.device_argument < 0) return;
  const auto& value = call.arguments()[static_cast<std::size_t>(call.info.device_argument)];
  if (!value.isDevice() || value.toDevice().type() == call.mesh->layout->device_type()) return;
  throw UnsupportedError(fmt::format(
      "{} asks for a tensor on {}, but its mesh {} is on {}: a DTensor stays on its mesh's device. Move the "
      "plain module or "
      "tensor before it is distributed, on a mesh of that device; or read the values with full_tensor() or "
      "to_local() and "
      "move those.",
      call.where(), value.toDevice().str(), call.mesh->layout->to_string(), call.mesh->device.str()));
}

// Whether a shard that is empty on this rank alone meets a stock operator, which might refuse it.
bool holds_nothing(const Call& call, const Decision& decision, c10::ArrayRef<at::Tensor> locals) {
  if (decision.kernel || decision.fallback || decision.view || call.info.in_place || call.info.whole_values) return false;
  for (std::size_t i = 0; i < locals.size(); ++i)
    if (locals[i].defined() && locals[i].numel() == 0 && c10::multiply_integers(call.operands[i].sizes) != 0) return true;
  return false;
}

void localize_sizes(const Call& call, const Decision& decision) {
  for (auto [argument, result] : decision.size_arguments) {
    const auto& sizes = decision.results[static_cast<std::size_t>(result)];
    call.stack[call.base + static_cast<std::size_t>(argument)] =
        shard_math::local_sizes(*sizes.layout, sizes.sizes, call.mesh->coordinate);
  }
}

void run_local(Call& call, const Decision& decision, c10::ArrayRef<at::Tensor> locals,
               std::span<const c10::IValue> global_arguments) {
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  if (decision.kernel) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const KernelContext context{call.info.handle,
                                {call.operands.data(), call.operands.size()},
                                decision,
                                *call.mesh,
                                global_arguments};
    decision.kernel(context, call.stack);
    return;
  }
  c10::DispatchKeySet keys;
  for (const auto& local : locals)
    if (local.defined()) keys = keys | local.key_set();
  keys = (keys - above_backends) - c10::autocast_dispatch_keyset;
  // Kernels of these are fallthroughs for some operators, which only a call through the dispatcher skips.
  const bool lazy = keys.has_any(c10::DispatchKeySet(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor}));
  if (keys.empty() || lazy || call.info.rule == nullptr) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call.info.handle.callBoxed(call.stack);
  } else {
    call.info.handle.redispatchBoxed(keys, &call.stack);
  }
}

// The global strides of a view of operand 0, from those of the operand.
c10::SmallVector<std::int64_t, 8> view_strides(const Call& call, const ResultDecision& result, c10::IntArrayRef sizes) {
  const auto& strides = call.operands[0].strides;
  c10::SmallVector<std::int64_t, 8> own(result.view_dims.size(), 1);
  for (std::size_t i = own.size(); i-- > 0;) {
    const ViewDim dim = result.view_dims[i];
    if (dim.source >= 0)
      own[i] = strides[static_cast<std::size_t>(dim.source)] * dim.times;
    else if (i + 1 < own.size())
      own[i] = sizes[i + 1] * own[i + 1];  // as unsqueeze has it
  }
  return own;
}

at::Tensor wrap_result(Call& call, const Decision& decision, const ResultDecision& result, at::Tensor local,
                       c10::ArrayRef<at::Tensor> locals) {
  if (!decision.view)
    // Some stock operators return their argument (dropout in evaluation); two wrappers of one local tensor would let
    // autograd accumulate into both.
    for (const auto& operand : locals)
      if (operand.defined() && operand.is_same(local)) local = local.clone();
  if (!result.layout->is_sharded()) {
    // What moved is row-major, whatever the operand was.
    if (!result.memory_order.empty()) local = in_memory_order(local, result.memory_order);
    return wrap(local, result.layout, call.mesh, local.sizes(), local.strides());
  }
  c10::SmallVector<std::int64_t, 8> sizes;
  if (!result.sizes.empty() || result.size_sources.empty()) {
    sizes.append(result.sizes.begin(), result.sizes.end());
  } else {
    for (std::size_t dim = 0; dim < result.size_sources.size(); ++dim) {
      const auto source = result.size_sources[dim];
      sizes.push_back(source.operand < 0 ? local.size(static_cast<std::int64_t>(dim))
                                         : call.operands[static_cast<std::size_t>(source.operand)]
                                               .sizes[static_cast<std::size_t>(source.dim)]);
    }
  }
  if (decision.view && !decision.by_sizes) return wrap(std::move(local), result.layout, call.mesh, sizes, view_strides(call, result, sizes));
  if (decision.view && !result.strides.empty())
    return wrap(std::move(local), result.layout, call.mesh, sizes, result.strides);
  if (result.memory_order.empty()) {
    if (!local.is_contiguous()) local = local.contiguous();
    return wrap(std::move(local), result.layout, call.mesh, sizes);
  }
  // The local tensor follows the global memory order.
  local = in_memory_order(local, result.memory_order);
  return wrap(std::move(local), result.layout, call.mesh, sizes,
              strides_in_order(sizes, result.memory_order));
}

void wrap_results(Call& call, const Decision& decision, c10::ArrayRef<at::Tensor> locals) {
  std::size_t next = 0;
  const auto wrap_next = [&](const at::Tensor& local) -> at::Tensor {
    TORCH_INTERNAL_ASSERT(decision.fallback || next < decision.results.size(), call.info.name,
                          ": the rule tells of fewer results than there are");
    const auto& result = decision.results[decision.fallback ? 0 : next];
    ++next;
    if (!local.defined() || !result.defined) return at::Tensor();
    auto wrapped = wrap_result(call, decision, result, local, locals);
    Meta& data = meta(wrapped);
    if (call.operands[0].layout) {
      const Meta& source = meta(call.tensors[0]);
      if (call.info.carries_wishes) data.wishes = source.wishes;
      if (call.info.casts && AutocastScope::active() && cast_by_autocast(call.mesh->layout->device_type()))
        note_cast(call.tensors[0], wrapped);
      if (decision.view && (decision.moves || source.gathered)) {
        data.gathered = true;
        data.base_version = static_cast<std::int64_t>(call.tensors[0]._version());
      }
    }
    return wrapped;
  };
  for (std::size_t i = 0; i < call.info.return_alias.size(); ++i) {
    c10::IValue& value = call.stack[call.base + i];
    if (const int alias = call.info.return_alias[i]; alias >= 0) {
      for (std::size_t j = 0; j < call.operands.size(); ++j)
        if (call.operands[j].argument == alias) value = call.tensors[j];
      ++next;
    } else if (value.isTensor()) {
      value = wrap_next(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const auto& local : value.toTensorVector()) list.push_back(wrap_next(local));
      value = std::move(list);
    }
  }
}

std::string describe(c10::IntArrayRef sizes, const Layout* layout) {
  return fmt::format("[{}] {}", fmt::join(sizes, ", "), layout ? to_string(layout->placements()) : "plain");
}

void record(const Call& call, const Decision& decision) {
  ExplainedOperator entry{call.info.name, {}, {}, decision.fallback, decision.note};
  if (call.info.casts && !AutocastScope::active() && cast_by_autocast(call.mesh->layout->device_type()))
    entry.note += "cast by autocast outside AutocastScope: consumers of such copies do not share moves";
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const auto& operand = call.operands[i];
    if (!operand.defined) continue;
    auto text = describe(operand.sizes, operand.layout);
    if (operand.layout && decision.operands[i] && decision.operands[i] != operand.layout)
      text += " -> " + to_string(decision.operands[i]->placements());
    entry.inputs.push_back(std::move(text));
  }
  for (std::size_t i = 0; i < call.info.return_alias.size(); ++i) {
    const auto& value = call.stack[call.base + i];
    if (value.isTensor() && is_dtensor(value.toTensor()))
      entry.outputs.push_back(describe(value.toTensor().sizes(), meta(value.toTensor()).layout));
  }
  Explain::current()->add(std::move(entry));
}

bool has_sizes(const ResultDecision& result, const Call& call, c10::IntArrayRef sizes) {
  if (!result.sizes.empty()) return sizes == c10::IntArrayRef(result.sizes);
  if (result.size_sources.size() != sizes.size()) return false;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const auto source = result.size_sources[dim];
    if (source.operand < 0 ||
        call.operands[static_cast<std::size_t>(source.operand)].sizes[static_cast<std::size_t>(source.dim)] != sizes[dim])
      return false;
  }
  return true;
}

// The out= form of a pointwise operator whose result lies where `out` lies: LibTorch's own kernel writes into the local tensor.
// Returns false, having done nothing, where that is not so; run_out_variant then computes and copies. (Others may refuse a shard
// that is empty on one rank alone.)
bool run_out_directly(Call& call) {
  const auto out = call.operands.size() - 1;
  const Operand& written = call.operands[out];
  if (!written.written || !written.layout || written.layout->has_partial() || Explain::current()) return false;
  for (std::size_t i = 0; i < out; ++i)
    if (call.operands[i].written || (call.operands[i].defined && !call.operands[i].layout && call.operands[i].ndim() > 0))
      return false;
  const auto form = functional_form(call.info);
  if (!form || call.info.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return false;
  const OperatorInfo& info = operator_info(*form);
  if (!info.rule || info.rule->decompose || !form->hasTag(at::Tag::pointwise) ||
      info.arguments.size() + 1 != call.info.arguments.size())
    return false;

  torch::jit::Stack inputs(call.arguments().begin(), call.arguments().end() - 1);
  Call functional(info, inputs);
  if (!functional.mesh) return false;
  check_gathered(call);
  const auto decision = find_decision(functional);
  if (decision->fallback || decision->view || decision->kernel || !decision->size_arguments.empty() ||
      decision->results.size() != 1 || decision->results[0].layout != written.layout || !sizes_fit(functional, *decision) ||
      !has_sizes(decision->results[0], functional, written.sizes))
    return false;
  check_moves(functional, *decision);
  c10::SmallVector<at::Tensor, 8> locals;
  local_tensors(functional, *decision, locals);
  const at::Tensor result = call.tensors[out];
  locals.push_back(meta(result).local);
  call.set_tensors(locals);
  {
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call.info.handle.callBoxed(call.stack);
  }
  call.stack.resize(call.base);
  call.stack.emplace_back(result);
  return true;
}

}  // namespace

void dispatch(const OperatorInfo& info, torch::jit::Stack& stack) {
  Call call(info, stack);
  if (!call.mesh) {  // no DTensor among the arguments (a list of undefined tensors, say)
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    info.handle.callBoxed(stack);
    return;
  }
  if (!call.mesh->member)
    throw MeshError(fmt::format("{}: rank {} is outside the mesh {} and holds no values of its tensors",
                                info.name, call.mesh->world->rank(), call.mesh->layout->to_string()));
  if (info.element_wise_on_lists && run_on_lists(call)) return;
  if (info.rule ? info.rule->decompose : info.loops_over_lists) {
    info.handle.callBoxedForDispatchKey(info.composite_key, stack);
    return;
  }
  check_device(call);
  if (info.sets_values) return run_set(call);
  check_gathered(call);
  admit_plain_operands(call);
  for (std::size_t i = 0; i < call.operands.size(); ++i)
    if (call.operands[i].layout) install_leaf_hook(call.tensors[i]);
  if (info.has_out) return run_out_directly(call) ? void() : run_out_variant(call);
  if (info.changes_geometry && run_in_place_view(call)) return;

  const auto decision = find_decision(call);
  if (decision->fallback) {
    if (decision->moves) check_shapes(call);
    if (info.in_place && info.reads_strides)
      throw UnsupportedError(
          fmt::format("{}: the geometry of a DTensor's memory cannot be set in place", call.where()));
    if (info.in_place) {
      run_in_place_replicated(call);
      return call.count_writes();
    }
    if (!info.whole_values) admit_fallback(call);
  }
  if (!sizes_fit(call, *decision)) throw_shape_error(call);
  if (info.writes_others) check_written_operands(call, *decision);
  check_moves(call, *decision);

  // View replay: autograd rebuilds views with as_strided on global geometry unless it is on, and new threads and
  // InferenceMode(false) reset it.
  if (decision->view) c10::AutogradState::get_tls_state().set_view_replay_enabled(true);

  c10::SmallVector<at::Tensor, 8> locals;
  local_tensors(call, *decision, locals);
  if (info.reads_strides) restore_strides(call, *decision, locals[0]);
  if (holds_nothing(call, *decision, locals)) {
    if (auto results = empty_results(call, *decision)) {
      stack.resize(call.base);
      for (auto& result : *results) stack.push_back(std::move(result));
      if (info.writes_others) write_moved_operands(call, *decision, locals);
      call.count_writes();
      wrap_results(call, *decision, locals);
      if (Explain::current()) record(call, *decision);
      return;
    }
  }
  c10::SmallVector<c10::IValue, 8> global_arguments;
  if (decision->kernel) global_arguments.append(call.arguments().begin(), call.arguments().end());
  call.set_tensors(locals);
  if (!decision->size_arguments.empty()) localize_sizes(call, *decision);
  run_local(call, *decision, locals, {global_arguments.data(), global_arguments.size()});
  if (info.writes_others) write_moved_operands(call, *decision, locals);
  call.count_writes();
  wrap_results(call, *decision, locals);
  if (Explain::current()) [[unlikely]]
    record(call, *decision);
}

}  // namespace dtensor::detail
