// Elements in another order, repeated, or written over a part: flip, roll, repeat, unfold, slice_scatter, ...
// A dimension along which elements move is whole, the others pass.
#include "ops/local_indices.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"
#include "ops/view_copies.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>

namespace dtensor {
namespace {

using Dims = std::vector<std::int64_t>;

// Letters of operand 0 with `dims` whole; nothing where one of them does not exist.
std::optional<std::vector<int>> letters_whole_in(RuleBuilder& builder, const OperatorCall& call,
                                                 const Dims& dims) {
  const auto letters = builder.letters(0);
  const auto ndim = call.operand(0).ndim();
  for (auto dim : dims) {
    dim = OperatorCall::wrap_dim(dim, ndim);
    if (dim < 0 || dim >= ndim) return std::nullopt;
    builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  }
  return letters;
}

// flip(self, dims)
std::optional<Rule> flip(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto letters = letters_whole_in(builder, call, call.argument(1).toIntVector());
  if (!letters) return std::nullopt;
  return builder.result(*letters).passes_any_pending().build();
}

// roll(self, shifts, dims): without dims it rolls self as flat.
std::optional<Rule> roll(const OperatorCall& call) {
  auto dims = call.argument(2).toIntVector();
  if (dims.empty())
    for (std::int64_t dim = 0; dim < call.operand(0).ndim(); ++dim) dims.push_back(dim);
  RuleBuilder builder(call);
  const auto letters = letters_whole_in(builder, call, dims);
  if (!letters) return std::nullopt;
  return builder.result(*letters).passes_any_pending().build();
}

// rot90(self, k, dims): the two dimensions are whole and change places where k is odd.
std::optional<Rule> rot90(const OperatorCall& call) {
  const auto dims = call.argument(2).toIntVector();
  const auto ndim = call.operand(0).ndim();
  if (dims.size() != 2) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = letters_whole_in(builder, call, dims);
  if (!letters) return std::nullopt;
  const auto a = static_cast<std::size_t>(OperatorCall::wrap_dim(dims[0], ndim)),
             b = static_cast<std::size_t>(OperatorCall::wrap_dim(dims[1], ndim));
  if (call.argument(1).toInt() % 2 != 0) std::swap((*letters)[a], (*letters)[b]);
  return builder.result(*letters).passes_any_pending().build();
}

// repeat(self, repeats): dimensions repeated once pass; new ones come first.
std::optional<Rule> repeat(const OperatorCall& call) {
  const auto repeats = call.argument(1).toIntVector();
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  if (repeats.size() < letters.size()) return std::nullopt;
  const auto added = repeats.size() - letters.size();
  std::vector<int> result(added, no_factor);
  for (std::size_t dim = 0; dim < letters.size(); ++dim) {
    const bool once = repeats[added + dim] == 1;
    if (!once) builder.at(letters[dim]).kind = Factor::Kind::whole;
    result.push_back(once ? letters[dim] : no_factor);
  }
  return builder.result(result).passes_any_pending().build();
}

// unfold(self, dimension, size, step): windows of `dimension`, in a new last dimension.
std::optional<Rule> unfold(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto letters = builder.letters_whole_along(1);
  if (!letters || letters->empty()) return std::nullopt;
  (*letters)[static_cast<std::size_t>(
      OperatorCall::wrap_dim(call.argument(1).toInt(), call.operand(0).ndim()))] = no_factor;
  letters->push_back(no_factor);
  return builder.result(*letters).passes_any_pending().view().build();
}

// unfold_backward(grad, input_sizes, dim, size, step): windows are added up in `dim`.
std::optional<Rule> unfold_backward(const OperatorCall& call) {
  auto sizes = call.argument(1).toIntVector();
  const auto ndim = static_cast<std::int64_t>(sizes.size()),
             dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  if (dim < 0 || dim >= ndim || call.operand(0).ndim() != ndim + 1) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = letters_whole_in(builder, call, {dim, ndim});
  (*letters)[static_cast<std::size_t>(dim)] = no_factor;
  letters->pop_back();
  return builder.sized_result(*letters, std::move(sizes)).size_argument(1).linear({0}).by_sizes().build();
}

// The first index of a slice and one past its last, counted from the front.
std::pair<std::int64_t, std::int64_t> slice_bounds(const c10::IValue& start, const c10::IValue& end,
                                                   std::int64_t size) {
  const auto bound = [size](const c10::IValue& value, std::int64_t none) {
    auto place = value.isNone() ? none : value.toInt();
    if (place < 0) place += size;
    return std::clamp<std::int64_t>(place, 0, size);
  };
  const auto first = bound(start, 0);
  return {first, std::max(first, bound(end, std::numeric_limits<std::int64_t>::max()))};
}

// Both write rows of `dim` by their number, so that a cut tensor stays where it is.
void local_slice_scatter(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto& operand = context.operands[0];
  const auto dim = OperatorCall::wrap_dim(stack[base + 2].toInt(), operand.ndim());
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto self = stack[base].toTensor();
  const auto [first, last] =
      slice_bounds(stack[base + 3], stack[base + 4], operand.sizes[static_cast<std::size_t>(dim)]);
  const auto rows = at::arange(first, last, stack[base + 5].toInt(), self.options().dtype(at::kLong));
  const auto result = write_rows(context, self, dim, rows, stack[base + 1].toTensor());
  stack.resize(base);
  stack.emplace_back(result);
}
void local_select_scatter(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto& operand = context.operands[0];
  const auto dim = OperatorCall::wrap_dim(stack[base + 2].toInt(), operand.ndim());
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto self = stack[base].toTensor();
  const auto row =
      OperatorCall::wrap_dim(stack[base + 3].toInt(), operand.sizes[static_cast<std::size_t>(dim)]);
  const auto result = write_rows(context, self, dim, at::full({1}, row, self.options().dtype(at::kLong)),
                                 stack[base + 1].toTensor().unsqueeze(dim));
  stack.resize(base);
  stack.emplace_back(result);
}

// slice_scatter(self, src, dim, start?, end?, step), select_scatter(self, src, dim, index): self passes, src is whole
// in `dim`. Linear in both together.
std::optional<Rule> rows_written(const OperatorCall& call, bool dropped) {
  const auto ndim = call.operand(0).ndim(), dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  if (dim < 0 || dim >= ndim || call.operand(1).ndim() != ndim - (dropped ? 1 : 0)) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  builder.result(letters).linear({0, 1});
  if (dropped)
    letters.erase(letters.begin() + dim);
  else
    letters[static_cast<std::size_t>(dim)] = no_factor;
  return builder.operand(1, letters).build();
}
std::optional<Rule> slice_scatter(const OperatorCall& call) {
  auto rule = rows_written(call, false);
  if (rule) rule->kernel = local_slice_scatter;
  return rule;
}
std::optional<Rule> select_scatter(const OperatorCall& call) {
  auto rule = rows_written(call, true);
  if (rule) rule->kernel = local_select_scatter;
  return rule;
}

// alias_copy(self), detach_copy, lift_fresh_copy, _conj_copy, _neg_view_copy: every dimension passes.
std::optional<Rule> same(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).passes_any_pending().build();
}
std::optional<Rule> same_linear(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).linear({0}).build();
}

}  // namespace

void detail::add_rearranging_rules() {
  add_rule("aten::flip", flip);
  add_rule("aten::roll", roll);
  add_rule("aten::rot90", rot90);
  add_rule("aten::repeat", repeat);
  add_rule("aten::unfold", unfold);
  add_rule("aten::unfold_copy", copy_of<unfold>);
  add_rule("aten::unfold_backward", unfold_backward);
  add_rule("aten::slice_scatter", slice_scatter);
  add_rule("aten::select_scatter", select_scatter);
  for (const char* name : {"aten::alias_copy", "aten::detach_copy", "aten::lift_fresh_copy"})
    add_rule(name, same);
  for (const char* name : {"aten::_conj_copy", "aten::_neg_view_copy"}) add_rule(name, same_linear);
}

}  // namespace dtensor
