// The only file that knows dispatch keys and registration. See DESIGN section 4: a boxed fallback for PrivateUse2 alone
// is not enough, because operators with a CompositeExplicitAutograd kernel bypass it; so the same boxed kernel is
// registered for every operator that is not composite-implicit.
#include "dtensor/intercept.h"

#include "dtensor/dispatch.h"
#include "dtensor/override.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace dtensor::detail {
namespace {

using c10::DispatchKey;

// The kernel of one operator, with its info worked out beforehand.
class InterceptKernel final : public c10::OperatorKernel {
 public:
  explicit InterceptKernel(const OperatorInfo& info) : info_(&info) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { dispatch(*info_, *stack); }

 private:
  const OperatorInfo* info_;
};

// Operators registered by nobody here (a library loaded later, before it is taken up).
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  dispatch(operator_info(op), *stack);
}

// Libraries stay registered for the life of the process.
torch::Library& library(const std::string& name, DispatchKey key) {
  static std::vector<std::unique_ptr<torch::Library>> libraries;
  libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name, key, __FILE__, __LINE__));
  return *libraries.back();
}

// This library's own operators: local computations that rules describe. They have no autograd formula of their own.
at::Tensor weight_gradient_kernel(const at::Tensor& gradient, const at::Tensor& input) {
  return at::mm(gradient.reshape({-1, gradient.size(-1)}).t(), input.reshape({-1, input.size(-1)}));
}
at::Tensor embedding_gradient_kernel(const at::Tensor& gradient, const at::Tensor& indices, const at::Tensor& weight,
                                     std::int64_t padding, bool scale) {
  return at::embedding_dense_backward(gradient, indices, weight.size(0), padding, scale);
}

void define_own_operators() {
  static torch::Library definitions(torch::Library::DEF, "dtensor", std::nullopt, __FILE__, __LINE__);
  definitions.def("weight_gradient(Tensor gradient, Tensor input) -> Tensor",
                  torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(weight_gradient_kernel)));
  definitions.def(
      "embedding_gradient(Tensor gradient, Tensor indices, Tensor weight, int padding_idx, bool scale) -> Tensor",
      torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(embedding_gradient_kernel)));
}

// Composites replaced before they decompose. One key alone breaks training or inference.
const std::set<std::string>& overridden() {
  static const std::set<std::string> names = {"aten::matmul",  "aten::linear",   "aten::addmm",
                                              "aten::embedding", "aten::layer_norm", "aten::rms_norm",
                                              "aten::dropout", "aten::scaled_dot_product_attention"};
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
    aten.impl("scaled_dot_product_attention", TORCH_FN(override_::scaled_dot_product_attention));
    if (key == DispatchKey::AutogradPrivateUse2) {
      aten.impl("embedding", TORCH_FN(override_::embedding));
      aten.impl("value_selecting_reduction_backward", TORCH_FN(override_::value_selecting_reduction_backward));
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

void register_kernels() {
  library("_", DispatchKey::PrivateUse2).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  library("_", DispatchKey::AutogradPrivateUse2).fallback(torch::autograd::autogradNotImplementedFallback());
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& aten = library("aten", DispatchKey::PrivateUse2);
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) continue;
    if (!takes_tensors(op->schema())) continue;
    const std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (overridden().count("aten::" + full)) continue;
    aten.impl(full.c_str(),
              torch::CppFunction::makeFromBoxedFunctor(std::make_unique<InterceptKernel>(operator_info(*op))));
  }
}

}  // namespace

void ensure_intercepted() {
  static std::once_flag once;
  std::call_once(once, [] {
    define_own_operators();
    register_overrides();
    register_kernels();
  });
}

}  // namespace dtensor::detail
