// Softmax and its kin along one dimension, which may be cut: then maxima and sums are reduced over the ranks that hold its
// pieces (two small all-reduces forward, one backward) and the values stay where they are. Vocabulary-parallel losses rest
// on this; Megatron-LM calls it vocab-parallel cross entropy.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

namespace dtensor {
namespace {

// Operands and results alike in shape; any dimension may be cut.
std::optional<Rule> alike(const OperatorCall& call, std::size_t dim_argument, std::size_t operands,
                          LocalKernel kernel) {
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  const auto dim = OperatorCall::wrap_dim(call.argument(dim_argument).toInt(), call.operand(0).ndim());
  if (!letters.empty() && (dim < 0 || dim >= call.operand(0).ndim())) return std::nullopt;
  for (std::size_t i = 1; i < operands; ++i) builder.operand(i, letters);
  builder.result(letters);
  if (operands == 2) builder.linear({0});  // backward formulas are linear in the gradient
  return builder.kernel(kernel).build();
}

// The dimension the call works along, where it is cut; else nothing, and the stock operator serves.
std::optional<std::int64_t> cut_dim(const KernelContext& context, std::size_t dim_argument) {
  const auto ndim = context.operands[0].ndim();
  if (ndim == 0) return std::nullopt;
  const auto dim = OperatorCall::wrap_dim(context.global_arguments[dim_argument].toInt(), ndim);
  return context.is_cut(0, dim) ? std::optional(dim) : std::nullopt;
}

// Sums in float32 at least, as LibTorch's kernels do.
void reduce_along(const KernelContext& context, at::Tensor& tensor, ReduceOp op, std::int64_t dim) {
  const std::int64_t dims[] = {dim};
  context.all_reduce(tensor, op, 0, dims);
}

// _softmax(self, dim, half_to_float), _log_softmax and _safe_softmax (whose rows of -inf alone give zeros)
enum class Form { plain, logarithm, safe };

template <Form form>
void local_softmax(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto dim = cut_dim(context, 1);
  if (!dim) return context.call_stock(stack);
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  const auto& last = context.global_arguments[2];  // half_to_float, or _safe_softmax's dtype
  const bool to_float = last.isBool() && last.toBool();
  const auto result_dtype = to_float ? at::kFloat : last.isInt() ? last.toScalarType() : self.scalar_type();
  const auto x = self.to(wide(result_dtype));
  auto sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(*dim)] = 1;
  const double infinity = std::numeric_limits<double>::infinity();
  auto maximum = x.size(*dim) == 0 ? at::full(sizes, -infinity, x.options()) : at::amax(x, {*dim}, true);
  reduce_along(context, maximum, ReduceOp::max, *dim);
  if (form == Form::safe) maximum = maximum.masked_fill(maximum.eq(-infinity), 0);
  const auto shifted = x - maximum;
  const auto exponentials = shifted.exp();
  auto sum = exponentials.sum({*dim}, true);
  reduce_along(context, sum, ReduceOp::sum, *dim);
  at::Tensor result;
  if (form == Form::logarithm) {
    result = shifted - sum.log();
  } else {
    if (form == Form::safe) sum = sum.masked_fill(sum.eq(0), 1);
    result = exponentials / sum;
  }
  stack.resize(base);
  stack.emplace_back(result.to(result_dtype));
}

// _softmax_backward_data(grad_output, output, dim, input_dtype): (g - sum(g y)) y; of the logarithm g - exp(y) sum(g)
template <bool logarithm>
void local_softmax_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto dim = cut_dim(context, 2);
  if (!dim) return context.call_stock(stack);
  const auto base = stack.size() - context.global_arguments.size();
  const auto gradient = stack[base].toTensor(), output = stack[base + 1].toTensor();
  const auto dtype = context.global_arguments[3].toScalarType();
  const auto g = gradient.to(wide(gradient.scalar_type())), y = output.to(wide(output.scalar_type()));
  const auto weighted = logarithm ? g : g * y;
  auto sum = weighted.sum({*dim}, true);
  reduce_along(context, sum, ReduceOp::sum, *dim);
  const auto result = logarithm ? g - y.exp() * sum : weighted - y * sum;
  stack.resize(base);
  stack.emplace_back(result.to(dtype));
}

template <Form form>
std::optional<Rule> forward(const OperatorCall& call) {
  return alike(call, 1, 1, local_softmax<form>);
}
template <bool logarithm>
std::optional<Rule> backward(const OperatorCall& call) {
  return alike(call, 2, 2, local_softmax_backward<logarithm>);
}

}  // namespace

void detail::add_softmax_rules() {
  add_rule("aten::_softmax", forward<Form::plain>);
  add_rule("aten::_log_softmax", forward<Form::logarithm>);
  add_rule("aten::_safe_softmax", forward<Form::safe>);
  add_rule("aten::_softmax_backward_data", backward<false>);
  add_rule("aten::_log_softmax_backward_data", backward<true>);
}

}  // namespace dtensor
