// Random operators: values by global element index (philox.h), so that replicas agree and shards differ. A generator given is
// not used: the state belongs to the mesh.
#include "ops/kernel_context.h"
#include "ops/philox.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace dtensor {
namespace {

using Stack = std::vector<c10::IValue>;

std::size_t arguments_begin(const KernelContext& context, const Stack& stack) {
  return stack.size() - context.global_arguments.size();
}
// An argument that is no tensor, by its name: variants of an operator have it at different positions.
const c10::IValue& argument(const KernelContext& context, const char* name) {
  return context.global_arguments[static_cast<std::size_t>(*context.op.schema().argumentIndexWithName(name))];
}
void finish(Stack& stack, std::size_t begin, at::Tensor result) {
  stack.resize(begin);
  stack.emplace_back(std::move(result));
}

// A draw of `sizes` placed by `layout`, by default those of operand 0. Takes a step of the mesh's state.
detail::Draw draw_of(const KernelContext& context, const Layout& layout, c10::IntArrayRef sizes) {
  return {layout, sizes, context.mesh, detail::next_philox(context.mesh)};
}
detail::Draw draw_of(const KernelContext& context, const Layout& layout) {
  return draw_of(context, layout, context.operands[0].sizes);
}
detail::Draw draw_of(const KernelContext& context) { return draw_of(context, *context.layout(0)); }

void check_floating(const KernelContext& context, c10::ScalarType dtype, bool or_complex = true) {
  TORCH_CHECK(at::isFloatingType(dtype) || (or_complex && at::isComplexType(dtype)), context.op.schema().name(), " draws no numbers of type ",
              dtype, "; random_, randint and bernoulli_ do");
}

at::Tensor draw_uniform(const KernelContext& context, const at::Tensor& like) {
  auto values = at::empty(like.sizes(), like.options().dtype(at::kDouble));
  detail::fill_uniform(values, draw_of(context));
  return values;
}

// native_dropout(input, p, train?) -> (out, mask)
void local_dropout(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  const auto input = stack[base].toTensor();
  const double p = stack[base + 1].toDouble();
  const bool train = stack[base + 2].isNone() || stack[base + 2].toBool();
  stack.resize(base);
  if (!train) {
    stack.emplace_back(input.clone());
    stack.emplace_back(at::ones_like(input, input.options().dtype(at::kBool)));
    return;
  }
  auto mask = at::empty(input.sizes(), input.options().dtype(at::kBool));
  detail::fill_bernoulli(mask, draw_of(context), 1 - p);
  const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
  stack.emplace_back(input.mul(mask).mul_(scale));
  stack.emplace_back(mask);
}
std::optional<Rule> native_dropout(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  return builder.result(letters).result(letters).kernel(local_dropout).build();
}

// Distributions drawn in place. A law turns numbers in [0, 1) into values, by the arguments of the call; it refuses arguments
// as the stock operator does, on every rank alike.
at::Tensor inside(at::Tensor uniform) {  // in (0, 1), neither end: its logarithms are finite
  return uniform.mul_(0x1p52).floor_().add_(0.5).mul_(0x1p-52);
}
at::Tensor exponential_law(const KernelContext& context, at::Tensor u) {
  check_floating(context, context.operands[0].dtype, false);
  const double rate = argument(context, "lambd").toDouble();
  TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  return inside(u).log_().div_(-rate);
}
at::Tensor cauchy_law(const KernelContext& context, at::Tensor u) {
  check_floating(context, context.operands[0].dtype, false);
  const double median = argument(context, "median").toDouble(), sigma = argument(context, "sigma").toDouble();
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  return inside(u).sub_(0.5).mul_(std::numbers::pi).tan_().mul_(sigma).add_(median);
}
at::Tensor geometric_law(const KernelContext& context, at::Tensor u) {
  const double p = argument(context, "p").toDouble();
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return inside(u).log_().div_(std::log1p(-p)).ceil_();
}

template <at::Tensor (*law)(const KernelContext&, at::Tensor)>
void local_law(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  auto self = stack[base].toTensor();
  self.copy_(law(context, draw_uniform(context, self)));
  stack.resize(base + 1);
}
void local_uniform(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  auto self = stack[base].toTensor();
  check_floating(context, self.scalar_type());
  const double from = argument(context, "from").toDouble(), to = argument(context, "to").toDouble();
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  detail::fill_uniform(self, draw_of(context), from, to);
  stack.resize(base + 1);
}
// bernoulli_(self, p), bernoulli(self, p)
template <bool in_place>
void local_bernoulli(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  const double p = argument(context, "p").toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli expects p to be in [0, 1], but got p=", p);
  auto result = in_place ? stack[base].toTensor() : at::empty_like(stack[base].toTensor());
  detail::fill_bernoulli(result, draw_of(context), p);
  finish(stack, base, result);
}
template <bool exponent>
void local_normal(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  auto self = stack[base].toTensor();
  check_floating(context, self.scalar_type(), !exponent);
  const double mean = argument(context, "mean").toDouble(), std = argument(context, "std").toDouble();
  TORCH_CHECK(exponent ? std > 0 : std >= 0, context.op.schema().name(), " expects std ", exponent ? ">" : ">=",
              " 0.0, but found std=", std);
  detail::fill_normal(self, draw_of(context), mean, std);
  if (exponent) self.exp_();
  stack.resize(base + 1);
}
template <LocalKernel kernel>
std::optional<Rule> in_place_draw(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).kernel(kernel).build();
}

// bernoulli(self): self holds the probabilities. bernoulli_.Tensor: p does.
void local_bernoulli_of(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  const auto self = stack[base].toTensor();
  finish(stack, base, draw_uniform(context, self).lt(self).to(self.scalar_type()));
}
void local_bernoulli_by_tensor(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  auto self = stack[base].toTensor();
  self.copy_(draw_uniform(context, self).lt(stack[base + 1].toTensor()));
  stack.resize(base + 1);
}
std::optional<Rule> bernoulli_by_tensor(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(2).kernel(local_bernoulli_by_tensor).build();
}

// normal(mean, std): one or both are tensors, which broadcast against each other.
void local_normal_of(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  const c10::IValue mean = stack[base], std = stack[base + 1];
  TORCH_CHECK(!std.isDouble() || std.toDouble() >= 0, "normal expects std >= 0.0, but found std ", std.toDouble());
  const at::Tensor first = mean.isTensor() ? mean.toTensor() : std.toTensor();
  const auto both = mean.isTensor() && std.isTensor();
  const auto local_sizes =
      both ? at::infer_size(first.sizes(), std.toTensor().sizes()) : first.sizes().vec();
  const auto sizes = both ? at::infer_size(context.operands[0].sizes, context.operands[1].sizes)
                          : context.operands[0].sizes.vec();
  auto values = at::empty(local_sizes, first.options());
  detail::fill_normal(values, draw_of(context, *context.decision.results[0].layout, sizes));
  if (std.isTensor())
    values.mul_(std.toTensor());
  else
    values.mul_(std.toDouble());
  if (mean.isTensor())
    values.add_(mean.toTensor());
  else
    values.add_(mean.toDouble());
  finish(stack, base, values);
}
std::optional<Rule> normal_of(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(call.operands.size()).kernel(local_normal_of).build();
}

// random_(self), random_.to(self, to), random_.from(self, from, to?), randint_like(self, [low,] high): integers below an end.
std::uint64_t largest_integer(c10::ScalarType dtype) {  // that `dtype` counts up to without a gap
  switch (dtype) {
    case at::kDouble: return std::uint64_t{1} << std::numeric_limits<double>::digits;
    case at::kFloat: return std::uint64_t{1} << std::numeric_limits<float>::digits;
    case at::kHalf: return std::uint64_t{1} << std::numeric_limits<c10::Half>::digits;
    case at::kBFloat16: return std::uint64_t{1} << std::numeric_limits<c10::BFloat16>::digits;
    case at::kBool: return 1;
    case at::kByte: return std::numeric_limits<std::uint8_t>::max();
    case at::kChar: return std::numeric_limits<std::int8_t>::max();
    case at::kShort: return std::numeric_limits<std::int16_t>::max();
    case at::kInt: return std::numeric_limits<std::int32_t>::max();
    case at::kLong: return std::numeric_limits<std::int64_t>::max();
    default: TORCH_CHECK(false, "no random integers of type ", dtype);
  }
}
// Fills with [from, to), to where it is None the largest of the type.
void draw_integers(const KernelContext& context, at::Tensor& self, const Layout& layout, std::int64_t from,
                   const c10::IValue& to) {
  const auto largest = largest_integer(self.scalar_type());
  if (!to.isNone()) {
    const auto end = to.toInt();
    TORCH_CHECK(from < end, "random_ expects 'from' to be less than 'to', but got from=", from, " >= to=", end);
    TORCH_CHECK(end - 1 <= 0 || static_cast<std::uint64_t>(end - 1) <= largest, "to - 1 is out of bounds for ", self.dtype());
  }
  const auto last = to.isNone() ? largest : static_cast<std::uint64_t>(to.toInt()) - 1;
  detail::fill_integers(self, draw_of(context, layout), from, last - static_cast<std::uint64_t>(from) + 1);
}
enum class Ends { none, to, both };
template <Ends ends>
void local_random(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  auto self = stack[base].toTensor();
  draw_integers(context, self, *context.layout(0), ends == Ends::both ? argument(context, "from").toInt() : 0,
                ends == Ends::none ? c10::IValue() : argument(context, "to"));
  stack.resize(base + 1);
}

// rand_like(self, ...), randn_like(self, ...), randint_like(self, [low,] high, ...). The result's layout is that of self, but
// Replicate where self is pending.
enum class Like { uniform, normal, integers };
template <Like kind>
void local_like(const KernelContext& context, Stack& stack) {
  const auto base = arguments_begin(context, stack);
  const auto self = stack[base].toTensor();
  const auto& dtype = argument(context, "dtype");
  auto values = at::empty(self.sizes(), dtype.isNone() ? self.options() : self.options().dtype(dtype.toScalarType()));
  const Layout& layout = *context.decision.results[0].layout;
  if constexpr (kind == Like::integers) {
    const bool low = context.op.schema().argumentIndexWithName("low").has_value();
    draw_integers(context, values, layout, low ? argument(context, "low").toInt() : 0, argument(context, "high"));
  } else {
    check_floating(context, values.scalar_type());
    if (kind == Like::uniform)
      detail::fill_uniform(values, draw_of(context, layout));
    else
      detail::fill_normal(values, draw_of(context, layout));
  }
  finish(stack, base, values);
}
template <Like kind>
std::optional<Rule> like(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.rule().ignores_values = true;
  return builder.result(builder.letters(0)).kernel(local_like<kind>).build();
}

}  // namespace

void detail::add_random_rules() {
  add_rule("aten::native_dropout", native_dropout);
  add_rule("aten::uniform_", in_place_draw<local_uniform>);
  add_rule("aten::bernoulli_.float", in_place_draw<local_bernoulli<true>>);
  add_rule("aten::exponential_", in_place_draw<local_law<exponential_law>>);
  add_rule("aten::cauchy_", in_place_draw<local_law<cauchy_law>>);
  add_rule("aten::geometric_", in_place_draw<local_law<geometric_law>>);
  add_rule("aten::normal_", in_place_draw<local_normal<false>>);
  add_rule("aten::log_normal_", in_place_draw<local_normal<true>>);
  add_rule("aten::random_", in_place_draw<local_random<Ends::none>>);
  add_rule("aten::random_.to", in_place_draw<local_random<Ends::to>>);
  add_rule("aten::random_.from", in_place_draw<local_random<Ends::both>>);
  add_rule("aten::bernoulli", in_place_draw<local_bernoulli_of>);
  add_rule("aten::bernoulli.p", in_place_draw<local_bernoulli<false>>);
  add_rule("aten::bernoulli_.Tensor", bernoulli_by_tensor);
  for (const char* name : {"aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"})
    add_rule(name, normal_of);
  for (const char* name : {"aten::rand_like", "aten::rand_like.generator"}) add_rule(name, like<Like::uniform>);
  for (const char* name : {"aten::randn_like", "aten::randn_like.generator"}) add_rule(name, like<Like::normal>);
  for (const char* name : {"aten::randint_like", "aten::randint_like.generator", "aten::randint_like.low_dtype",
                           "aten::randint_like.low_generator_dtype"})
    add_rule(name, like<Like::integers>);
}

}  // namespace dtensor
