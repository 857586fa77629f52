// Joining and cutting along a dimension: cat, stack, split, unbind, slice, select.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"
#include "ops/view_copies.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace dtensor {
namespace {

std::vector<int> all_operands(const OperatorCall& call) {
  std::vector<int> all(call.operands.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// cat(tensors, dim): the joined dimension is whole, the others pass. Tensors [0] may stand among others of any rank.
std::optional<Rule> cat(const OperatorCall& call) {
  std::int64_t ndim = 0;
  for (const auto& operand : call.operands) ndim = std::max(ndim, operand.ndim());
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim);
  if (ndim == 0 || dim < 0 || dim >= ndim) return std::nullopt;
  RuleBuilder builder(call);
  std::vector<int> letters;
  for (std::int64_t i = 0; i < ndim; ++i) letters.push_back(i == dim ? no_factor : builder.factor());
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const auto& operand = call.operand(i);
    if (operand.ndim() == ndim) {
      builder.operand(i, letters);
    } else {
      if (operand.sizes != c10::IntArrayRef{0}) return std::nullopt;
      builder.operand(i, {no_factor}).by_sizes();
    }
  }
  return builder.result(letters).linear(all_operands(call)).build();
}

// stack(tensors, dim): a new dimension, the others pass.
std::optional<Rule> stack(const OperatorCall& call) {
  if (call.operands.empty()) return std::nullopt;
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim + 1);
  if (dim < 0 || dim > ndim) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  for (std::size_t i = 0; i < call.operands.size(); ++i) builder.operand(i, letters);
  letters.insert(letters.begin() + dim, no_factor);
  return builder.result(letters).linear(all_operands(call)).build();
}

// Letters of operand 0 with `dim` whole (and sized by the operator), repeated for `count` results.
std::optional<Rule> pieces(const OperatorCall& call, std::int64_t dim, std::int64_t count, bool drop) {
  dim = OperatorCall::wrap_dim(dim, call.operand(0).ndim());
  if (dim < 0 || dim >= call.operand(0).ndim()) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  if (drop)
    letters.erase(letters.begin() + dim);
  else
    letters[static_cast<std::size_t>(dim)] = no_factor;
  for (std::int64_t i = 0; i < count; ++i) builder.result(letters);
  return builder.passes_any_pending().view().by_sizes().list_result().build();
}

// split.Tensor(self, split_size, dim)
std::optional<Rule> split(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  const auto size = call.argument(1).toInt();
  if (dim < 0 || dim >= ndim || size < 0) return std::nullopt;
  const auto have = call.operand(0).sizes[static_cast<std::size_t>(dim)];
  if (size == 0 && have != 0) return std::nullopt;
  return pieces(call, dim, size == 0 ? 1 : std::max<std::int64_t>(1, (have + size - 1) / size), false);
}
// split_with_sizes(self, split_sizes, dim)
std::optional<Rule> split_with_sizes(const OperatorCall& call) {
  return pieces(call, call.argument(2).toInt(), static_cast<std::int64_t>(call.argument(1).toIntVector().size()), false);
}
// unbind.int(self, dim)
std::optional<Rule> unbind(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  return pieces(call, dim, call.operand(0).sizes[static_cast<std::size_t>(dim)], true);
}

// A slice of everything, on a cut dimension: the local bound would be the global one.
void local_slice(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto dim = OperatorCall::wrap_dim(stack[base + 1].toInt(), context.operands[0].ndim());
  if (context.layout(0)->mesh_dims_cutting(dim).empty()) return context.call_stock(stack);
  const auto local = stack[base].toTensor();
  stack.resize(base);
  stack.emplace_back(local.alias());
}

// slice.Tensor(self, dim, start?, end?, step)
std::optional<Rule> slice(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  const auto have = call.operand(0).sizes[static_cast<std::size_t>(dim)];
  const auto start = call.argument(2).isNone() ? 0 : call.argument(2).toInt();
  const auto end = call.argument(3).isNone() ? std::numeric_limits<std::int64_t>::max() : call.argument(3).toInt();
  const bool everything = (start == 0 || start <= -have) && end >= have && call.argument(4).toInt() == 1;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  const auto* layout = call.operand(0).layout;
  const bool cut = layout && !layout->mesh_dims_cutting(dim).empty();
  if (!cut || !everything) {
    builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
    letters[static_cast<std::size_t>(dim)] = no_factor;
  }
  // Where the dimension is not cut, the bounds alter neither the sharding nor the strides: a cache that grows by slices
  // asks for one decision.
  std::vector<ViewDim> places;
  for (int i = 0; i < static_cast<int>(ndim); ++i) places.push_back({i, i == dim ? call.argument(4).toInt() : 1});
  builder.result(letters).passes_any_pending().kernel(local_slice).view_dims(std::move(places));
  if (cut) builder.by_sizes();
  return builder.build();
}

// select.int(self, dim, index)
std::optional<Rule> select(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  letters.erase(letters.begin() + dim);
  std::vector<ViewDim> places;
  for (int i = 0; i < static_cast<int>(ndim); ++i)
    if (i != dim) places.push_back({i});
  return builder.result(letters).passes_any_pending().view_dims(std::move(places)).build();
}

// narrow_copy(self, dim, start, length): `dim` is whole.
std::optional<Rule> narrow_copy(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto letters = builder.letters_whole_along(1);
  if (!letters || letters->empty()) return std::nullopt;
  (*letters)[static_cast<std::size_t>(OperatorCall::wrap_dim(call.argument(1).toInt(), call.operand(0).ndim()))] =
      no_factor;
  return builder.result(*letters).passes_any_pending().build();
}

// slice_backward(grad, input_sizes, dim, start, end, step), select_backward(grad, input_sizes, dim, index): the gradient
// is placed in zeros; the dimension it is placed in is whole, the others pass.
std::optional<Rule> placed_in_zeros(const OperatorCall& call, bool dropped) {
  auto sizes = call.argument(1).toIntVector();
  const auto ndim = static_cast<std::int64_t>(sizes.size());
  const auto dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  if (dropped) {
    letters.insert(letters.begin() + dim, no_factor);
  } else {
    builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
    letters[static_cast<std::size_t>(dim)] = no_factor;
  }
  return builder.sized_result(letters, std::move(sizes)).size_argument(1).linear({0}).by_sizes().build();
}
std::optional<Rule> slice_backward(const OperatorCall& call) { return placed_in_zeros(call, false); }
std::optional<Rule> select_backward(const OperatorCall& call) { return placed_in_zeros(call, true); }

// unsafe_split serves composites that write to the pieces in place (LSTM cells), which pending ones would refuse.
template <RuleFunction function>
std::optional<Rule> reduced(const OperatorCall& call) {
  auto rule = function(call);
  if (rule) rule->passes_any_pending = false;
  return rule;
}

}  // namespace

void detail::add_join_split_rules() {
  add_rule("aten::cat", cat);
  add_rule("aten::stack", stack);
  add_rule("aten::split.Tensor", split);
  add_rule("aten::split_with_sizes", split_with_sizes);
  add_rule("aten::unbind.int", unbind);
  add_rule("aten::slice.Tensor", slice);
  add_rule("aten::select.int", select);
  add_rule("aten::slice_backward", slice_backward);
  add_rule("aten::select_backward", select_backward);
  add_rule("aten::_stack", stack);
  add_rule("aten::narrow_copy", narrow_copy);
  // The same as views, with memory of their own.
  add_rule("aten::unsafe_split.Tensor", reduced<copy_of<split>>);
  add_rule("aten::unsafe_split_with_sizes", reduced<copy_of<split_with_sizes>>);
  add_rule("aten::split_copy.Tensor", copy_of<split>);
  add_rule("aten::split_with_sizes_copy", copy_of<split_with_sizes>);
  add_rule("aten::unbind_copy.int", copy_of<unbind>);
  add_rule("aten::slice_copy.Tensor", copy_of<slice, local_slice>);
  add_rule("aten::select_copy.int", copy_of<select>);
}

}  // namespace dtensor
