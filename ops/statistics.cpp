// Reductions that are no plain sum, product or extreme of their parts: variance, logsumexp, where an extreme is, counts.
// Over a cut dimension each rank reduces its part, the small partial results meet, and every rank finishes alike.
#include "ops/kernel_context.h"
#include "ops/reduced_dims.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtensor {
namespace {

using Dims = std::vector<std::int64_t>;

Dims cut_ones(const KernelContext& context, const Dims& dims) {
  Dims cut;
  std::copy_if(dims.begin(), dims.end(), std::back_inserter(cut),
               [&](auto dim) { return context.is_cut(0, dim); });
  return cut;
}

at::Tensor without(const at::Tensor& tensor, const Dims& dims, bool keepdim) {
  return keepdim || dims.empty() ? tensor : tensor.squeeze(dims);
}

// var(self, dim?, *, correction?, keepdim), std, and with their mean: two all-reduces, of the sum and of the squared
// distances from the global mean. (A sum of squares alone would cancel.)
template <bool root, bool with_mean>
void local_variance(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto& arguments = context.global_arguments;
  const auto& operand = context.operands[0];
  const auto dims = reduced_dim_list(&arguments[1], operand.ndim()), cut = cut_ones(context, dims);
  const auto base = stack.size() - arguments.size();
  const auto self = stack[base].toTensor();
  if (cut.empty() && self.numel() != 0) return context.call_stock(stack);  // which warns of an empty part
  const double correction = arguments[2].isNone() ? 1.0 : arguments[2].toScalar().toDouble();
  const bool keepdim = arguments[3].toBool();
  double count = 1;
  for (auto dim : dims) count *= static_cast<double>(operand.sizes[static_cast<std::size_t>(dim)]);
  const auto x = self.to(wide(self.scalar_type()));
  auto mean = x.sum(dims, true);
  context.all_reduce(mean, ReduceOp::sum, 0, cut);
  mean = mean / count;
  const auto distance = x - mean;
  auto variance =
      (x.is_complex() ? at::real(distance * distance.conj()) : distance * distance).sum(dims, true);
  context.all_reduce(variance, ReduceOp::sum, 0, cut);
  variance = variance / std::max(0.0, count - correction);
  if (root) variance = variance.sqrt();
  const auto real_dtype = c10::toRealValueType(self.scalar_type());
  stack.resize(base);
  stack.emplace_back(without(variance.to(real_dtype), dims, keepdim));
  if (with_mean) stack.emplace_back(without(mean.to(self.scalar_type()), dims, keepdim));
}

template <bool root, bool with_mean>
std::optional<Rule> variance(const OperatorCall& call) {
  auto shape =
      reduction_shape(call, &call.arguments[1], flag_argument(call, 3), Factor::Kind::reduce, ReduceOp::sum);
  for (int i = 0; i < (with_mean ? 2 : 1); ++i) shape.builder.completed_result(shape.kept);
  return shape.builder.kernel(local_variance<root, with_mean>).build();
}

// logsumexp(self, dim, keepdim)
void local_logsumexp(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto dims = reduced_dim_list(&context.global_arguments[1], context.operands[0].ndim());
  const auto cut = cut_ones(context, dims);
  if (cut.empty()) return context.call_stock(stack);
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  const bool keepdim = context.global_arguments[2].toBool();
  const auto dtype = at::isFloatingType(self.scalar_type()) || self.is_complex()
                         ? self.scalar_type()
                         : c10::typeMetaToScalarType(at::get_default_dtype());
  const auto x = self.to(wide(dtype));
  const double infinity = std::numeric_limits<double>::infinity();
  const auto magnitude = x.is_complex() ? at::real(x) : x;
  auto maximum =
      self.numel() == 0 ? at::full_like(magnitude.sum(dims, true), -infinity) : magnitude.amax(dims, true);
  context.all_reduce(maximum, ReduceOp::max, 0, cut);
  maximum = maximum.masked_fill(maximum.abs().eq(infinity), 0);
  auto sum = (x - maximum).exp().sum(dims, true);
  context.all_reduce(sum, ReduceOp::sum, 0, cut);
  stack.resize(base);
  stack.emplace_back(without((sum.log() + maximum).to(dtype), dims, keepdim));
}

std::optional<Rule> logsumexp(const OperatorCall& call) {
  auto shape =
      reduction_shape(call, &call.arguments[1], flag_argument(call, 2), Factor::Kind::reduce, ReduceOp::sum);
  return shape.builder.completed_result(shape.kept).kernel(local_logsumexp).build();
}

// max.dim(self, dim, keepdim) -> (values, indices), argmax(self, dim?, keepdim): the first of equal extremes, by global
// index. Each rank finds its own; those of all pieces meet, in order.
template <bool maximum, bool with_values>
void local_where_extreme(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto& arguments = context.global_arguments;
  const auto& operand = context.operands[0];
  if (arguments[1].isNone() || operand.ndim() == 0) return context.call_stock(stack);
  const auto dim = OperatorCall::wrap_dim(arguments[1].toInt(), operand.ndim());
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto base = stack.size() - arguments.size();
  auto self = stack[base].toTensor();
  const bool keepdim = arguments[2].toBool(), boolean = self.scalar_type() == at::kBool;
  if (boolean) self = self.to(at::kByte);
  at::Tensor values, indices;
  if (self.size(dim) == 0) {
    auto sizes = self.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = 1;
    values = at::full(sizes, extreme_identity(self.scalar_type(), maximum), self.options());
    indices = at::zeros(sizes, self.options().dtype(at::kLong));
  } else {
    std::tie(values, indices) = maximum ? self.max(dim, true) : self.min(dim, true);
    indices = indices + context.intervals(0, dim).front().offset;
  }
  const auto all_values = context.gather_pieces(values, 0, dim),
             all_indices = context.gather_pieces(indices, 0, dim);
  const auto best = maximum ? all_values.argmax(0, true) : all_values.argmin(0, true);
  const auto finish = [&](const at::Tensor& all) {
    const auto found = all.gather(0, best).squeeze(0);
    return keepdim ? found : found.squeeze(dim);
  };
  stack.resize(base);
  if (with_values) stack.emplace_back(boolean ? finish(all_values).to(at::kBool) : finish(all_values));
  stack.emplace_back(finish(all_indices));
}

template <bool maximum, bool with_values>
std::optional<Rule> where_extreme(const OperatorCall& call) {
  const auto& self = call.operand(0);
  bool interleaved = false;  // its pieces are not in the order of their indices
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim)
    interleaved = interleaved || self.placement(mesh_dim).is_interleaved();
  const bool one_dim = !call.argument(1).isNone() && !interleaved;
  auto shape = reduction_shape(call, &call.arguments[1], flag_argument(call, 2),
                               one_dim ? Factor::Kind::reduce : Factor::Kind::whole, ReduceOp::sum);
  for (int i = 0; i < (with_values ? 2 : 1); ++i) shape.builder.completed_result(shape.kept);
  return shape.builder.kernel(local_where_extreme<maximum, with_values>).build();
}

// all(self), all.dim(self, dim, keepdim), all.dims(self, dim?, keepdim): pending by min or max, which on booleans is "all"
// and "any".
template <ReduceOp op>
std::optional<Rule> truth(const OperatorCall& call) {
  const bool with_dims = call.arguments.size() == 3;
  if (with_dims && call.argument(1).isIntList() && call.argument(1).toIntVector().empty())
    return std::nullopt;  // all.dims with [] reduces nothing
  auto shape = reduction_shape(call, with_dims ? &call.arguments[1] : nullptr, flag_argument(call, 2),
                               Factor::Kind::reduce, op);
  return shape.builder.result(shape.kept).build();
}

// Sums of something that is not linear: count_nonzero(self), count_nonzero.dim_IntList(self, dim)
std::optional<Rule> count_nonzero(const OperatorCall& call) {
  const bool with_dims = call.arguments.size() == 2;
  auto shape = reduction_shape(call, with_dims ? &call.arguments[1] : nullptr, false, Factor::Kind::reduce,
                               ReduceOp::sum);
  return shape.builder.result(shape.kept).build();
}
// nansum(self, dim?, keepdim, *, dtype)
std::optional<Rule> nansum(const OperatorCall& call) {
  auto shape =
      reduction_shape(call, &call.arguments[1], flag_argument(call, 2), Factor::Kind::reduce, ReduceOp::sum);
  return shape.builder.result(shape.kept).build();
}

// aminmax(self, *, dim?, keepdim) -> (min, max)
void local_aminmax(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto& arguments = context.global_arguments;
  const auto dims = reduced_dim_list(&arguments[1], context.operands[0].ndim()),
             cut = cut_ones(context, dims);
  if (cut.empty()) return context.call_stock(stack);
  const auto base = stack.size() - arguments.size();
  const auto self = stack[base].toTensor();
  const bool keepdim = arguments[2].toBool();
  stack.resize(base);
  for (const bool maximum : {false, true}) {
    at::Tensor extreme;
    if (self.numel() == 0) {
      auto sizes = self.sizes().vec();
      for (auto dim : dims) sizes[static_cast<std::size_t>(dim)] = 1;
      extreme = at::full(sizes, extreme_identity(self.scalar_type(), maximum), self.options());
    } else {
      extreme = maximum ? self.amax(dims, true) : self.amin(dims, true);
    }
    context.all_reduce(extreme, maximum ? ReduceOp::max : ReduceOp::min, 0, cut);
    stack.emplace_back(without(extreme, dims, keepdim));
  }
}
std::optional<Rule> aminmax(const OperatorCall& call) {
  auto shape =
      reduction_shape(call, &call.arguments[1], flag_argument(call, 2), Factor::Kind::reduce, ReduceOp::sum);
  return shape.builder.completed_result(shape.kept)
      .completed_result(shape.kept)
      .kernel(local_aminmax)
      .build();
}

}  // namespace

void detail::add_statistics_rules() {
  add_rule("aten::var.correction", RuleEntry{variance<false, false>, true, false});
  add_rule("aten::std.correction", RuleEntry{variance<true, false>, true, false});
  add_rule("aten::var_mean.correction", RuleEntry{variance<false, true>, true, false});
  add_rule("aten::std_mean.correction", RuleEntry{variance<true, true>, true, false});
  add_rule("aten::logsumexp", logsumexp);
  add_rule("aten::max.dim", where_extreme<true, true>);
  add_rule("aten::min.dim", where_extreme<false, true>);
  add_rule("aten::argmax", where_extreme<true, false>);
  add_rule("aten::argmin", where_extreme<false, false>);
  for (const char* overload : {"", ".dim", ".dims"}) {
    add_rule(std::string("aten::all") + overload, truth<ReduceOp::min>);
    add_rule(std::string("aten::any") + overload, truth<ReduceOp::max>);
  }
  add_rule("aten::count_nonzero", count_nonzero);
  add_rule("aten::count_nonzero.dim_IntList", count_nonzero);
  add_rule("aten::nansum", nansum);
  add_rule("aten::aminmax", aminmax);
}

}  // namespace dtensor
