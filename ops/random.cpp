// Random operators: values by global element index (philox.h), so that replicas agree and shards differ.
#include "ops/kernel_context.h"
#include "ops/philox.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace dtensor {
namespace {

at::Tensor draw_uniform(const KernelContext& context, const at::Tensor& like) {
  auto values = at::empty(like.sizes(), like.options().dtype(at::kDouble));
  detail::fill_uniform(values, *context.layout(0), context.operands[0].sizes, context.mesh, detail::next_philox(context.mesh));
  return values;
}

// native_dropout(input, p, train?) -> (out, mask)
void local_dropout(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 3;
  const auto input = stack[base].toTensor();
  const double p = stack[base + 1].toDouble();
  const bool train = stack[base + 2].isNone() || stack[base + 2].toBool();
  stack.resize(base);
  if (!train) {
    stack.emplace_back(input.clone());
    stack.emplace_back(at::ones_like(input, input.options().dtype(at::kBool)));
    return;
  }
  const auto mask = draw_uniform(context, input).ge(p);
  const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
  stack.emplace_back(input.mul(mask).mul_(scale));
  stack.emplace_back(mask);
}
std::optional<Rule> native_dropout(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  return builder.result(letters).result(letters).kernel(local_dropout).build();
}

// uniform_(self, from, to), normal_(self, mean, std), bernoulli_.float(self, p); a generator given is not used: the
// state belongs to the mesh.
void local_uniform(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  auto self = stack[base].toTensor();
  const double from = stack[base + 1].toDouble(), to = stack[base + 2].toDouble();
  self.copy_(draw_uniform(context, self).mul_(to - from).add_(from));
  stack.resize(base + 1);
}
void local_normal(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  auto self = stack[base].toTensor();
  auto values = at::empty(self.sizes(), self.options().dtype(at::kDouble));
  detail::fill_normal(values, *context.layout(0), context.operands[0].sizes, context.mesh, detail::next_philox(context.mesh));
  self.copy_(values.mul_(stack[base + 2].toDouble()).add_(stack[base + 1].toDouble()));
  stack.resize(base + 1);
}
void local_bernoulli(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  auto self = stack[base].toTensor();
  self.copy_(draw_uniform(context, self).lt(stack[base + 1].toDouble()));
  stack.resize(base + 1);
}
template <LocalKernel kernel>
std::optional<Rule> in_place_draw(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).kernel(kernel).build();
}

// bernoulli(self): self holds the probabilities.
void local_bernoulli_of(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  stack.resize(base);
  stack.emplace_back(draw_uniform(context, self).lt(self).to(self.scalar_type()));
}

// rand_like(self, ...), randn_like(self, ...)
template <bool uniform>
void local_like(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  auto options = self.options();
  if (!stack[base + 1].isNone()) options = options.dtype(stack[base + 1].toScalarType());
  auto values = at::empty(self.sizes(), options);
  // The result's layout: that of self, but Replicate where self is pending.
  const Layout& layout = *context.decision.results[0].layout;
  const auto state = detail::next_philox(context.mesh);
  if (uniform)
    detail::fill_uniform(values, layout, context.operands[0].sizes, context.mesh, state);
  else
    detail::fill_normal(values, layout, context.operands[0].sizes, context.mesh, state);
  stack.resize(base);
  stack.emplace_back(values);
}
template <bool uniform>
std::optional<Rule> like(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.rule().ignores_values = true;
  return builder.result(builder.letters(0)).kernel(local_like<uniform>).build();
}

}  // namespace

void detail::add_random_rules() {
  add_rule("aten::native_dropout", native_dropout);
  add_rule("aten::uniform_", in_place_draw<local_uniform>);
  add_rule("aten::normal_", in_place_draw<local_normal>);
  add_rule("aten::bernoulli_.float", in_place_draw<local_bernoulli>);
  add_rule("aten::bernoulli", in_place_draw<local_bernoulli_of>);
  add_rule("aten::rand_like", like<true>);
  add_rule("aten::randn_like", like<false>);
}

}  // namespace dtensor
