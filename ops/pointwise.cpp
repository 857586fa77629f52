// Pointwise operators: every result element depends on the operand elements at the same place (after broadcasting).
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <initializer_list>

namespace dtensor {
namespace {

std::optional<Rule> pointwise(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).build();
}

// f(a) linear in a, or f(a, b, ...) linear in a with the others whole: neg, backward formulas in their gradient.
std::optional<Rule> linear_in_first(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).linear({0}).build();
}

// a + b: linear in both together.
std::optional<Rule> sum_of_two(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).linear({0, 1}).build();
}

// a * b: linear in each alone. At most one factor of a product may stay pending.
std::optional<Rule> product_of_two(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).linear({0}).linear({1}).build();
}

// a + c * b1 * b2
std::optional<Rule> addcmul(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).linear({0, 1}).linear({0, 2}).build();
}

// where(condition, a, b)
std::optional<Rule> where(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).linear({1, 2}).build();
}

// masked_fill(self, mask, value) of a pending sum: one rank puts the value, the others nothing. Backward formulas fill
// gradients, often pending ones, with zero.
void local_masked_fill(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const Layout* layout = context.layout(0);
  auto& value = stack[stack.size() - 1];
  for (int mesh_dim = 0; mesh_dim < layout->mesh_ndim(); ++mesh_dim) {
    const Placement& placement = layout->placement(mesh_dim);
    if (!placement.is_partial() || placement.reduce_op() != ReduceOp::sum) continue;
    if (context.mesh.coordinate[static_cast<std::size_t>(mesh_dim)] == 0) continue;
    value = value.isTensor() ? c10::IValue(at::zeros_like(value.toTensor())) : c10::IValue(at::Scalar(0));
  }
  context.call_stock(stack);
}
std::optional<Rule> masked_fill(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).linear({0}).kernel(local_masked_fill).build();
}

// log_sigmoid_forward(self) -> (output, buffer). On a GPU the buffer is empty and backward does not read it.
bool has_buffer(const OperatorCall& call) { return call.mesh->device_type() == c10::DeviceType::CPU; }
std::optional<Rule> log_sigmoid(const OperatorCall& call) {
  RuleBuilder builder(call);
  if (has_buffer(call)) return builder.pointwise(1, 2).build();
  return builder.pointwise(1).alike_result({no_factor}).build();
}
// log_sigmoid_backward(grad, self, buffer)
std::optional<Rule> log_sigmoid_backward(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(has_buffer(call) ? 3 : 2).linear({0}).build();
}

// _prelu_kernel_backward(grad, self, weight) -> (gradient of self, of weight), all of one shape
std::optional<Rule> prelu_backward(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(3, 2).linear({0}).build();
}

// glu(self, dim): the two halves of `dim` meet element by element, so it is whole. glu_backward(grad, self, dim)
std::optional<Rule> glu(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto letters = builder.letters_whole_along(1);
  if (!letters || letters->empty()) return std::nullopt;
  (*letters)[static_cast<std::size_t>(OperatorCall::wrap_dim(call.argument(1).toInt(), call.operand(0).ndim()))] = no_factor;
  return builder.result(*letters).build();
}
std::optional<Rule> glu_backward(const OperatorCall& call) {
  const auto ndim = call.operand(1).ndim(), dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(1);
  builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  builder.result(letters);
  letters[static_cast<std::size_t>(dim)] = no_factor;
  return builder.operand(0, letters).linear({0}).build();
}

void add_all(RuleFunction function, std::initializer_list<const char*> names) {
  for (const char* name : names) detail::add_rule(std::string("aten::") + name, function);
}

// frexp.Tensor(self) -> (mantissa, exponent)
std::optional<Rule> frexp(const OperatorCall& call) { return RuleBuilder(call).pointwise(1, 2).build(); }

// Forms with a host scalar that matters to pending values run as the form with a 0-dimensional tensor, which is a replicated
// operand like any other; so `pending + 10` and `pending + tensor(10)` cannot disagree.
void add_decomposed(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    RuleEntry entry;
    entry.decompose = true;
    detail::add_rule(std::string("aten::") + name, entry);
  }
}

}  // namespace

const RuleEntry& pointwise_rule() {
  static const RuleEntry entry{pointwise};
  return entry;
}

void detail::add_pointwise_rules() {
  add_all(pointwise,
          {"abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf",
           "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "logit",
           "reciprocal", "relu", "round", "round.decimals", "rsqrt", "sigmoid", "sign", "signbit", "sgn", "sin", "sinc",
           "sinh", "sqrt", "tan", "tanh", "trunc", "special_log_ndtr", "special_ndtri", "i0", "special_i0e",
           "special_i1", "special_i1e", "special_entr", "special_erfcx", "polygamma", "nan_to_num"});
  add_all(pointwise,
          {"gelu", "silu", "mish", "elu", "celu", "leaky_relu", "hardtanh", "hardsigmoid", "hardswish",
           "hardshrink", "softshrink", "softplus", "threshold", "clamp", "clamp.Tensor",
           "clamp_min", "clamp_min.Tensor", "clamp_max", "clamp_max.Tensor", "_prelu_kernel"});
  add_all(pointwise, {"isnan", "isinf", "isposinf", "isneginf", "logical_not", "bitwise_not", "heaviside", "complex",
                      "polar"});
  add_all(pointwise,
          {"eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar", "lt.Tensor", "le.Scalar", "le.Tensor",
           "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor", "logical_and", "logical_or", "logical_xor",
           "bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "bitwise_left_shift.Tensor",
           "bitwise_right_shift.Tensor", "bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar"});
  add_all(pointwise,
          {"maximum", "minimum", "fmax", "fmin", "fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar",
           "atan2", "pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar", "pow_.Tensor",
           "pow_.Scalar", "div.Tensor_mode", "floor_divide", "floor_divide_.Tensor",
           "hypot", "copysign.Tensor", "logaddexp", "logaddexp2", "xlogy.Tensor", "nextafter", "gcd", "lcm"});
  add_all(linear_in_first,
          {"neg", "div.Tensor", "div.Scalar", "mul.Scalar", "gelu_backward", "silu_backward", "mish_backward", "sigmoid_backward", "tanh_backward",
           "threshold_backward", "elu_backward", "leaky_relu_backward", "hardtanh_backward", "hardsigmoid_backward",
           "hardswish_backward", "logit_backward", "hardshrink_backward", "softshrink_backward", "softplus_backward",
           "native_dropout_backward"});
  add_all(sum_of_two, {"add.Tensor", "sub.Tensor", "rsub.Tensor", "lerp.Scalar", "lerp.Tensor"});
  add_all(product_of_two, {"mul.Tensor"});
  add_all(addcmul, {"addcmul"});
  add_all(sum_of_two, {"addcdiv"});
  add_all(where, {"where.self"});
  add_all(masked_fill, {"masked_fill.Scalar", "masked_fill.Tensor"});
  add_all(prelu_backward, {"_prelu_kernel_backward"});
  add_all(frexp, {"frexp.Tensor"});
  add_all(glu, {"glu"});
  add_all(glu_backward, {"glu_backward"});
  add_all(log_sigmoid, {"log_sigmoid_forward"});
  add_all(log_sigmoid_backward, {"log_sigmoid_backward"});
  add_decomposed({"add.Scalar", "add_.Scalar", "sub.Scalar", "sub_.Scalar", "rsub.Scalar", "div.Scalar_mode", "div_.Scalar_mode"});
  // Others whose stock kernel is made of operators that have rules.
  add_decomposed({"_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "dist", "_chunk_cat",
                  "linalg_pinv.atol_rtol_tensor"});
}

}  // namespace dtensor
