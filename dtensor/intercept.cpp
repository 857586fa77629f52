// The only file that knows dispatch keys and registration. See DESIGN section 4: a boxed fallback for PrivateUse2 alone
// is not enough, because operators with a CompositeExplicitAutograd kernel bypass it; so the same boxed kernel is
// registered for every operator that is not composite-implicit.
#include "dtensor/intercept.h"

#include "dtensor/cross_entropy.h"
#include "dtensor/dispatch.h"
#include "dtensor/linear_cross_entropy.h"
#include "dtensor/override.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using c10::DispatchKey;

// The kernel of one operator, with its info worked out beforehand.
class InterceptKernel final : public c10::OperatorKernel {
 public:
  explicit InterceptKernel(const OperatorInfo& info) : info_(&info) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    ensure_intercepted();
    dispatch(*info_, *stack);
  }

 private:
  const OperatorInfo* info_;
};

// Operators of other libraries.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  ensure_intercepted();
  dispatch(operator_info(op), *stack);
}

// One per namespace and key; they stay registered for the life of the process.
torch::Library& library(const std::string& name, DispatchKey key) {
  static std::map<std::pair<std::string, DispatchKey>, std::unique_ptr<torch::Library>> libraries;
  auto& slot = libraries[{name, key}];
  if (!slot) slot = std::make_unique<torch::Library>(torch::Library::IMPL, name, key, __FILE__, __LINE__);
  return *slot;
}

// This library's own operators: local computations that rules describe. They have no autograd formula of their own.
at::Tensor weight_gradient_kernel(const at::Tensor& gradient, const at::Tensor& input) {
  return at::mm(gradient.flatten(0, -2).t(), input.flatten(0, -2));
}
at::Tensor embedding_gradient_kernel(const at::Tensor& gradient, const at::Tensor& indices,
                                     const at::Tensor& weight, std::int64_t padding, bool scale) {
  return at::embedding_dense_backward(gradient, indices, weight.size(0), padding, scale);
}

void define_own_operators() {
  static torch::Library definitions(torch::Library::DEF, "dtensor", std::nullopt, __FILE__, __LINE__);
  definitions.def("weight_gradient(Tensor gradient, Tensor input) -> Tensor",
                  torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(weight_gradient_kernel)));
  definitions.def(
      "embedding_gradient(Tensor gradient, Tensor indices, Tensor weight, int padding_idx, bool scale) -> "
      "Tensor",
      torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(embedding_gradient_kernel)));
  define_cross_entropy(definitions);
  define_linear_cross_entropy(definitions);
}

// Composites replaced before they decompose. One key alone breaks training or inference.
const std::set<std::string>& overridden() {
  static const std::set<std::string> names = {
      "aten::matmul",     "aten::linear",   "aten::addmm",   "aten::embedding",
      "aten::layer_norm", "aten::rms_norm", "aten::dropout", "aten::scaled_dot_product_attention"};
  return names;
}
void register_overrides() {
  for (const auto key : {DispatchKey::AutogradPrivateUse2, DispatchKey::PrivateUse2}) {
    auto& aten = library("aten", key);
    aten.impl("matmul", TORCH_FN(override_::matmul));
    aten.impl("linear", TORCH_FN(override_::linear));
    aten.impl("addmm", TORCH_FN(override_::addmm));
    aten.impl("layer_norm", TORCH_FN(override_::layer_norm));
    aten.impl("rms_norm", TORCH_FN(override_::rms_norm));
    aten.impl("dropout", TORCH_FN(override_::dropout));
    aten.impl("feature_dropout", TORCH_FN(override_::feature_dropout));
    aten.impl("feature_dropout_", TORCH_FN(override_::feature_dropout_));
    aten.impl("feature_alpha_dropout", TORCH_FN(override_::feature_alpha_dropout));
    aten.impl("feature_alpha_dropout_", TORCH_FN(override_::feature_alpha_dropout_));
    aten.impl("cross_entropy_loss", TORCH_FN(override_::cross_entropy_loss));
    aten.impl("scaled_dot_product_attention", TORCH_FN(override_::scaled_dot_product_attention));
    aten.impl("tensor_split.tensor_indices_or_sections", TORCH_FN(override_::tensor_split));
    aten.impl("ctc_loss.IntList", TORCH_FN(override_::ctc_loss_of_lists));
    aten.impl("ctc_loss.Tensor", TORCH_FN(override_::ctc_loss));
    aten.impl("max_pool1d", TORCH_FN(override_::max_pool1d));
    aten.impl("one_hot", TORCH_FN(override_::one_hot));
    aten.impl("trace_backward", TORCH_FN(override_::trace_backward));
    // Composites without a gradient that write into tensors of their own making: they run on whole values, undivided.
    for (const char* overload : {"", ".tol_tensor", ".atol_rtol_tensor", ".atol_rtol_float"}) {
      const auto op = c10::Dispatcher::singleton().findSchema(
          {"aten::linalg_matrix_rank", overload[0] ? overload + 1 : ""});
      if (op)
        aten.impl(
            (std::string("linalg_matrix_rank") + overload).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<InterceptKernel>(operator_info(*op))));
    }
    if (key == DispatchKey::AutogradPrivateUse2) {
      aten.impl("embedding", TORCH_FN(override_::embedding));
      aten.impl("value_selecting_reduction_backward",
                TORCH_FN(override_::value_selecting_reduction_backward));
      aten.impl("cummaxmin_backward", TORCH_FN(override_::cummaxmin_backward));
      aten.impl("linalg_matrix_exp", TORCH_FN(override_::linalg_matrix_exp));
      for (const char* name : {"linalg_householder_product", "ormqr", "conv_tbc"})
        aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&override_::from_whole_inputs>());
    } else {
      aten.impl("embedding", TORCH_FN(override_::embedding_below));
    }
  }
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments())
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  return false;
}

void register_fallbacks() {
  library("_", DispatchKey::PrivateUse2).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  library("_", DispatchKey::AutogradPrivateUse2).fallback(torch::autograd::autogradNotImplementedFallback());
}

void intercept(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findOp(name);
  if (!op || !op->hasSchema()) return;
  // A few operators (silu_backward) have a composite kernel beside one for the CPU and a formula of their own.
  const bool own = find_rule(name.name) && op->hasKernelForDispatchKey(DispatchKey::CPU) &&
                   op->hasKernelForDispatchKey(DispatchKey::Autograd);
  if (!takes_tensors(op->schema())) return;
  const bool composite = op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !own;
  // Note [Composite out=]
  // Composites write their out= through views of it, reshaped ones that need not be views by their schema. On a DTensor such
  // a view may have moved, and what is written to it is lost. So out= is computed and copied for composites too.
  const bool composite_out = composite && name.name.rfind("aten::", 0) == 0 && operator_info(*op).has_out;
  if (composite && !composite_out) return;
  if (name.overload_name.empty() && overridden().count(name.name)) return;
  const auto colons = name.name.find("::");
  const auto space = name.name.substr(0, colons);
  if (space == "dtensor") return;
  // Operators of other libraries reach the fallback by themselves unless they have a composite kernel.
  if (space != "aten" && !op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
      !op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional))
    return;
  if (op->hasKernelForDispatchKey(DispatchKey::PrivateUse2)) return;
  const auto full =
      name.name.substr(colons + 2) + (name.overload_name.empty() ? "" : "." + name.overload_name);
  for (const auto key : {DispatchKey::PrivateUse2, DispatchKey::AutogradPrivateUse2})
    if (key == DispatchKey::PrivateUse2 || composite_out)
      library(space, key)
          .impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                  std::make_unique<InterceptKernel>(operator_info(*op))));
}

// Note [Late operators]
// A listener is told of every operator, of those that exist and of those that a program defines later. It is called with
// the dispatcher's lock held and before the operator has kernels, so it only queues names; they are taken up at the next
// dispatch. Until then a composite kernel runs on the DTensor itself: right, operator by operator.
std::mutex queue_mutex;
std::vector<c10::OperatorName> queue;
std::atomic<bool> queued{false};

class QueueListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    const std::lock_guard lock(queue_mutex);
    queue.push_back(op.operator_name());
    queued.store(true, std::memory_order_release);
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

// Returns when nothing is queued, also for a thread that finds another one at it.
void intercept_queued() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  while (true) {
    std::vector<c10::OperatorName> names;
    {
      const std::lock_guard queue_lock(queue_mutex);
      names.swap(queue);
      if (names.empty()) {
        queued.store(false, std::memory_order_release);
        return;
      }
    }
    for (const auto& name : names) intercept(name);
  }
}

}  // namespace

void ensure_intercepted() {
  static std::once_flag once;
  std::call_once(once, [] {
    define_own_operators();
    register_overrides();
    register_fallbacks();
    // Never removed: it lives as long as the dispatcher.
    static const auto* listening = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<QueueListener>()));
    static_cast<void>(listening);
  });
  if (queued.load(std::memory_order_acquire)) intercept_queued();
}

}  // namespace dtensor::detail
