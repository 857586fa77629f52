// Operators that are a view with memory of its own (permute_copy, split_copy, ...): they share the views' rules.
#pragma once

#include "ops/kernel_context.h"
#include "ops/rule.h"

#include <ATen/core/Tensor.h>

namespace dtensor {

// A kernel of a view, whose result then gets its own memory.
template <LocalKernel view>
void local_copy_of(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  view(context, stack);
  if (const auto result = stack[base].toTensor(); result.is_alias_of(self)) stack[base] = result.clone();
}

// The rule of a copy, from that of the view. `view_kernel`: the view's kernel, if it has one.
template <RuleFunction view, LocalKernel view_kernel = nullptr>
std::optional<Rule> copy_of(const OperatorCall& call) {
  auto rule = view(call);
  if (!rule) return std::nullopt;
  rule->view = false;
  if constexpr (view_kernel != nullptr)
    if (rule->kernel) rule->kernel = local_copy_of<view_kernel>;
  return rule;
}

}  // namespace dtensor
