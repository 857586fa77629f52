// Factories and fills: they read no values, so they never move their argument.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/core/Tensor.h>
#include <ATen/Functions.h>

namespace dtensor {
namespace {

// zeros_like(self, ...), full_like(self, value, ...): placed as self; a pending self gives a replicated result.
std::optional<Rule> like(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.rule().ignores_values = true;
  return builder.result(builder.letters(0)).build();
}

// new_zeros(self, size, ...): placed as self where the sizes are self's, replicated otherwise.
std::optional<Rule> new_sized(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.rule().ignores_values = true;
  auto sizes = call.argument(1).toIntVector();
  auto letters = builder.letters(0);
  std::vector<int> dims(sizes.size(), no_factor);
  if (call.operand(0).sizes == c10::IntArrayRef(sizes)) dims = letters;
  return builder.sized_result(dims, std::move(sizes)).size_argument(1).by_sizes().build();
}

// new_empty_strided(self, size, stride, ...): strides of the local tensor follow the order of the global ones.
void local_new_empty_strided(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  const auto sizes = stack[base + 1].toIntVector();
  const auto global_strides = context.global_arguments[2].toIntVector();
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return global_strides[a] > global_strides[b]; });
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= std::max<std::int64_t>(sizes[order[i]], 1);
  }
  auto options = self.options();
  if (!stack[base + 3].isNone()) options = options.dtype(stack[base + 3].toScalarType());
  stack.resize(base);
  stack.emplace_back(at::empty_strided(sizes, strides, options));
}
std::optional<Rule> new_empty_strided(const OperatorCall& call) {
  auto rule = new_sized(call);
  rule->kernel = local_new_empty_strided;
  return rule;
}

// Filling a pending tensor: its parts must reduce to the value, so only coordinate 0 of a pending sum holds it.
void local_fill(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const bool fill = context.global_arguments.size() == 2;
  const Layout* layout = context.layout(0);
  if (fill && layout->has_partial())
    for (int mesh_dim = 0; mesh_dim < layout->mesh_ndim(); ++mesh_dim) {
      const Placement& placement = layout->placement(mesh_dim);
      if (!placement.is_partial() || context.mesh.coordinate[static_cast<std::size_t>(mesh_dim)] == 0) continue;
      if (placement.reduce_op() == ReduceOp::sum) stack[base + 1] = at::Scalar(0);
      if (placement.reduce_op() == ReduceOp::product) stack[base + 1] = at::Scalar(1);
    }
  context.call_stock(stack);
}
std::optional<Rule> fill(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.rule().keeps_layouts = true;
  return builder.result(builder.letters(0)).kernel(local_fill).build();
}
std::optional<Rule> fill_tensor(const OperatorCall& call) { return RuleBuilder(call).pointwise(2).build(); }

}  // namespace

void detail::add_factory_rules() {
  for (const char* name : {"aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like"})
    add_rule(name, like);
  for (const char* name : {"aten::new_zeros", "aten::new_ones", "aten::new_empty", "aten::new_full"})
    add_rule(name, new_sized);
  add_rule("aten::new_empty_strided", new_empty_strided);
  add_rule("aten::fill_.Scalar", fill);
  add_rule("aten::zero_", fill);
  add_rule("aten::fill_.Tensor", fill_tensor);
}

}  // namespace dtensor
