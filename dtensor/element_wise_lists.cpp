#include "dtensor/element_wise_lists.h"

#include "dtensor/explain.h"
#include "dtensor/leaf_hook.h"
#include "dtensor/redistribute.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <set>

namespace dtensor::detail {
namespace {

bool same_everywhere(const Operand& operand) { return !operand.layout || operand.layout->is_replicated(); }

bool lies_like(const Operand& operand, const Operand& lead) {
  if (operand.layout == lead.layout && operand.sizes == lead.sizes) return true;
  return lead.layout && operand.ndim() == 0 && same_everywhere(operand);
}

// A plain tensor, or a DTensor that its consumers may read, or write to, as it is.
bool is_ready(const at::Tensor& tensor, const Operand& operand, bool dense) {
  if (!operand.layout) return true;
  const Meta& data = meta(tensor);
  if (operand.layout->has_partial() || data.gathered) return false;
  return !dense || (tensor.is_contiguous() && data.local.is_contiguous());
}

// The argument of a fused step with gradients that it only reads, so that they may be moved to where the parameters lie; or -1.
// Its schema has them written, which they are where a scale is divided out.
int read_gradients(const Call& call) {
  const auto& arguments = call.info.handle.schema().arguments();
  if (arguments.size() < 2 || arguments[1].name() != "grads") return -1;
  for (std::size_t i = arguments.size(); i-- > 0;)
    if (arguments[i].name() == "grad_scale") return call.arguments()[i].isNone() ? 1 : -1;
  return 1;
}

}  // namespace

bool is_element_wise_on_lists(const std::string& name) {
  static const std::set<std::string> names = {
      "abs",  "acos",  "add",   "addcdiv", "addcmul",   "asin",      "atan",    "ceil",    "clamp_max",  "clamp_min", "copy",
      "cos",  "cosh",  "div",   "erf",     "erfc",      "exp",       "expm1",   "floor",   "frac",       "lerp",      "lgamma",
      "log",  "log10", "log1p", "log2",    "maximum",   "minimum",   "mul",     "neg",     "pow",        "reciprocal", "round",
      "rsqrt", "sigmoid", "sign", "sin",   "sinh",      "sqrt",      "sub",     "tan",     "tanh",       "trunc",     "zero"};
  static const std::set<std::string> steps = {"adagrad_", "adam_", "adamw_", "sgd_"};
  const auto base = name.substr(0, name.find('.'));
  if (base.rfind("aten::_fused_", 0) == 0) return steps.count(base.substr(13)) > 0;
  if (base.rfind("aten::_foreach_", 0) != 0) return false;
  auto rest = base.substr(15);
  if (rest.ends_with('_')) rest.pop_back();
  return names.count(rest) > 0;
}

bool run_on_lists(Call& call) {
  if (call.info.has_out || Explain::current()) return false;  // explained one by one
  const bool makes = !call.info.return_alias.empty();
  const auto& operands = call.operands;
  const auto lead_argument = std::find_if(operands.begin(), operands.end(), [](const Operand& one) { return one.element >= 0; });
  if (lead_argument == operands.end()) return false;
  const auto first = static_cast<std::size_t>(lead_argument - operands.begin());
  std::size_t count = 0;
  while (first + count < operands.size() && operands[first + count].argument == operands[first].argument) ++count;

  const int gradients = read_gradients(call);
  const bool may_move = call.mesh->world->policy().implicit_moves == ImplicitMoves::allow;
  const auto lead_of = [&](const Operand& operand) -> const Operand& { return operands[first + static_cast<std::size_t>(operand.element)]; };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    if (!operand.defined) continue;
    if (operand.element < 0) {
      if (c10::multiply_integers(operand.sizes) != 1 || !same_everywhere(operand)) return false;
    } else {
      if (static_cast<std::size_t>(operand.element) >= count) return false;
      const Operand& lead = lead_of(operand);
      const bool moves = operand.argument == gradients && may_move && operand.layout && lead.layout && operand.sizes == lead.sizes;
      if (!moves && !lies_like(operand, lead)) return false;
      if (moves && !lead.layout->has_partial() && !meta(call.tensors[i]).gathered) continue;
    }
    if (!is_ready(call.tensors[i], operand, makes)) return false;
  }

  const CollectiveReason reason("implicit move");
  c10::SmallVector<at::Tensor, 8> locals;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& tensor = call.tensors[i];
    if (!operands[i].layout) {
      locals.push_back(tensor);
      continue;
    }
    install_leaf_hook(tensor);
    const Meta& data = meta(tensor);
    const bool gradient = operands[i].argument == gradients;
    locals.push_back(gradient ? move_local(data.local, data.layout, lead_of(operands[i]).layout, tensor.sizes(), *data.mesh, true)
                              : data.local);
  }
  call.set_tensors(locals);
  {
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call.info.handle.callBoxed(call.stack);
  }
  call.count_writes(gradients);
  if (!makes) return true;
  auto results = call.stack.back().toTensorVector();
  for (std::size_t i = 0; i < count; ++i) {
    const Operand& lead = operands[first + i];
    if (lead.layout) results[i] = wrap(std::move(results[i]), lead.layout, call.mesh, lead.sizes);
  }
  call.stack.back() = std::move(results);
  return true;
}

}  // namespace dtensor::detail
