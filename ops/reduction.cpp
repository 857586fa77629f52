// Reductions over dimensions.
#include "ops/kernel_context.h"
#include "ops/reduced_dims.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtensor {
namespace {

// sum: sum(self, *, dtype); sum.dim_IntList(self, dim, keepdim, *, dtype)
std::optional<Rule> sum(const OperatorCall& call) {
  const bool with_dims = call.arguments.size() == 4;
  auto shape = reduction_shape(call, with_dims ? &call.arguments[1] : nullptr, with_dims && flag_argument(call, 2),
                         Factor::Kind::reduce, ReduceOp::sum);
  return shape.builder.result(shape.kept).linear({0}).build();
}

// A local mean divides by the local count: sum, then divide by the global count of reduced elements, so that shards add
// up to the global mean whatever their sizes.
void local_mean(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto& operand = context.operands[0];
  const auto count = context.global_arguments.size();
  const bool with_dims = count == 4;
  const auto base = stack.size() - count;
  const auto self = stack[base].toTensor();
  const auto& dtype_argument = stack[base + count - 1];
  std::optional<at::ScalarType> dtype;
  if (!dtype_argument.isNone()) dtype = dtype_argument.toScalarType();
  const auto reduced = reduced_dims(with_dims ? &context.global_arguments[1] : nullptr, operand.ndim());
  double elements = 1;
  std::vector<std::int64_t> dims;
  for (std::size_t dim = 0; dim < reduced.size(); ++dim)
    if (reduced[dim]) {
      elements *= static_cast<double>(operand.sizes[dim]);
      dims.push_back(static_cast<std::int64_t>(dim));
    }
  const bool keepdim = with_dims && context.global_arguments[2].toBool();
  TORCH_CHECK(at::isFloatingType(dtype.value_or(self.scalar_type())) || at::isComplexType(dtype.value_or(self.scalar_type())),
              "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: ",
              dtype.value_or(self.scalar_type()));
  auto result = dims.empty() ? self.clone() : at::sum(self, dims, keepdim, dtype);
  if (dims.empty() && dtype) result = result.to(*dtype);
  stack.resize(base);
  stack.emplace_back(result.div_(elements));
}

std::optional<Rule> mean(const OperatorCall& call) {
  const bool with_dims = call.arguments.size() == 4;
  auto shape = reduction_shape(call, with_dims ? &call.arguments[1] : nullptr, with_dims && flag_argument(call, 2),
                         Factor::Kind::reduce, ReduceOp::sum);
  return shape.builder.result(shape.kept).linear({0}).kernel(local_mean).build();
}

template <bool maximum>
void local_extreme(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto count = context.global_arguments.size();
  const auto base = stack.size() - count;
  const auto self = stack[base].toTensor();
  std::int64_t global = 1;
  for (auto size : context.operands[0].sizes) global *= size;
  if (self.numel() != 0 || global == 0) return context.call_stock(stack);
  const bool with_dims = count == 3;
  const auto reduced = reduced_dims(with_dims ? &context.global_arguments[1] : nullptr, self.dim());
  std::vector<std::int64_t> sizes;
  for (std::int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!reduced[static_cast<std::size_t>(dim)])
      sizes.push_back(self.size(dim));
    else if (with_dims && context.global_arguments[2].toBool())
      sizes.push_back(1);
  }
  stack.resize(base);
  stack.emplace_back(at::full(sizes, extreme_identity(self.scalar_type(), maximum), self.options()));
}

// max(self), amax(self, dim, keepdim)
template <bool maximum>
std::optional<Rule> extreme(const OperatorCall& call) {
  const bool with_dims = call.arguments.size() == 3;
  auto shape = reduction_shape(call, with_dims ? &call.arguments[1] : nullptr, with_dims && flag_argument(call, 2),
                         Factor::Kind::reduce, maximum ? ReduceOp::max : ReduceOp::min);
  return shape.builder.result(shape.kept).kernel(local_extreme<maximum>).build();
}

// prod(self, *, dtype); prod.dim_int(self, dim, keepdim, *, dtype)
std::optional<Rule> prod(const OperatorCall& call) {
  const bool with_dims = call.arguments.size() == 4;
  auto shape = reduction_shape(call, with_dims ? &call.arguments[1] : nullptr, with_dims && flag_argument(call, 2),
                         Factor::Kind::reduce, ReduceOp::product);
  return shape.builder.result(shape.kept).build();
}

// The p-norm of shards: each rank's partial power sum is reduced here, then the root is taken once. Every norm of a
// vector is such a sum, a maximum, a minimum or a count.
void local_vector_norm(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto& arguments = context.global_arguments;
  const auto base = stack.size() - arguments.size();
  const auto& operand = context.operands[0];
  const auto reduced = reduced_dims(&arguments[2], operand.ndim());
  std::vector<std::int64_t> cut;
  for (std::size_t dim = 0; dim < reduced.size(); ++dim)
    if (reduced[dim] && !context.layout(0)->mesh_dims_cutting(static_cast<std::int64_t>(dim)).empty())
      cut.push_back(static_cast<std::int64_t>(dim));
  if (cut.empty()) return context.call_stock(stack);
  const double order = arguments[1].isNone() ? 2.0 : arguments[1].toScalar().toDouble();
  auto self = stack[base].toTensor();
  if (arguments.size() == 5 && !arguments[4].isNone()) self = self.to(arguments[4].toScalarType());
  std::vector<std::int64_t> dims;
  for (std::size_t dim = 0; dim < reduced.size(); ++dim)
    if (reduced[dim]) dims.push_back(static_cast<std::int64_t>(dim));
  const bool keepdim = arguments[3].toBool();
  stack.resize(base);
  const auto magnitude = self.abs();
  at::Tensor result;
  if (std::isinf(order)) {
    const bool maximum = order > 0;
    if (self.numel() == 0) {
      result = at::sum(magnitude, dims, keepdim).fill_(extreme_identity(magnitude.scalar_type(), maximum));
    } else {
      result = maximum ? at::amax(magnitude, dims, keepdim) : at::amin(magnitude, dims, keepdim);
    }
    context.all_reduce(result, maximum ? ReduceOp::max : ReduceOp::min, 0, cut);
  } else if (order == 0) {
    result = at::sum(magnitude.ne(0).to(magnitude.scalar_type()), dims, keepdim);
    context.all_reduce(result, ReduceOp::sum, 0, cut);
  } else {
    result = order == 2 ? at::sum(magnitude * magnitude, dims, keepdim) : at::sum(magnitude.pow(order), dims, keepdim);
    context.all_reduce(result, ReduceOp::sum, 0, cut);
    result = order == 2 ? result.sqrt_() : result.pow_(1.0 / order);
  }
  stack.emplace_back(result);
}

// linalg_vector_norm(self, ord, dim, keepdim, *, dtype); norm.ScalarOpt_dim(self, p?, dim, keepdim)
std::optional<Rule> vector_norm(const OperatorCall& call) {
  auto shape = reduction_shape(call, &call.arguments[2], flag_argument(call, 3), Factor::Kind::reduce, ReduceOp::sum);
  return shape.builder.completed_result(shape.kept).kernel(local_vector_norm).build();
}

}  // namespace

void detail::add_reduction_rules() {
  add_rule("aten::sum", sum);
  add_rule("aten::sum.dim_IntList", sum);
  add_rule("aten::mean", mean);
  add_rule("aten::mean.dim", mean);
  add_rule("aten::max", extreme<true>);
  add_rule("aten::min", extreme<false>);
  add_rule("aten::amax", extreme<true>);
  add_rule("aten::amin", extreme<false>);
  add_rule("aten::prod", prod);
  add_rule("aten::prod.dim_int", prod);
  add_rule("aten::linalg_vector_norm", {vector_norm, true, false});
  add_rule("aten::norm.ScalarOpt_dim", {vector_norm, true, false});
  add_rule("aten::norm.Scalar", {nullptr, false, true});
}

}  // namespace dtensor
