// Joining and cutting along a dimension: cat, stack, split, unbind, slice, select.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"
#include "ops/view_copies.h"
#include "placements/shard_math.h"

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

// The mesh dimension that alone cuts a tensor dimension, or -1.
int only_cut(const Operand& operand, std::int64_t dim) {
  if (!operand.layout) return -1;
  const auto cutting = operand.layout->mesh_dims_cutting(dim);
  return cutting.size() == 1 ? cutting[0] : -1;
}

// Whether tensors that are joined along `dim` are all cut there by one mesh dimension, in few parts: each layout that a
// program makes is kept, and one that joins again and again (a growing cache) must come to an end.
bool joins_parts(const OperatorCall& call, std::int64_t dim) {
  constexpr std::size_t most_parts = 8;
  const int mesh_dim = only_cut(call.operand(0), dim);
  std::size_t parts = 0;
  for (const auto& operand : call.operands) {
    if (mesh_dim < 0 || only_cut(operand, dim) != mesh_dim || operand.ndim() != call.operand(0).ndim()) return false;
    const auto cut = operand.placement(mesh_dim);
    parts += cut.is_interleaved() ? cut.parts().size() : 1;
  }
  return parts <= most_parts;
}

// cat(tensors, dim): the joined dimension is whole, or packed (Note [Packed dimensions]); the others pass. Tensors [0] may
// stand among others of any rank.
std::optional<Rule> cat(const OperatorCall& call) {
  std::int64_t ndim = 0;
  for (const auto& operand : call.operands) ndim = std::max(ndim, operand.ndim());
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim);
  if (ndim == 0 || dim < 0 || dim >= ndim) return std::nullopt;
  RuleBuilder builder(call);
  std::vector<int> letters;
  const bool packs = joins_parts(call, dim);
  for (std::int64_t i = 0; i < ndim; ++i) letters.push_back(i == dim && !packs ? no_factor : builder.factor());
  if (packs) {
    builder.at(letters[static_cast<std::size_t>(dim)]).packing = Factor::Packing::join;
    auto sizes = call.operand(0).sizes.vec();
    for (std::size_t i = 1; i < call.operands.size(); ++i)
      sizes[static_cast<std::size_t>(dim)] += call.operand(i).sizes[static_cast<std::size_t>(dim)];
    for (std::size_t i = 0; i < call.operands.size(); ++i) builder.operand(i, letters);
    return builder.sized_result(letters, std::move(sizes)).linear(all_operands(call)).by_sizes().build();
  }
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

// The local sizes of the pieces.
void local_split(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto local = stack[base].toTensor();
  const auto dim = OperatorCall::wrap_dim(stack[base + 2].toInt(), local.dim());
  std::vector<std::int64_t> sizes;
  for (const auto& result : context.decision.results)
    sizes.push_back(shard_math::local_sizes(*result.layout, result.sizes,
                                            context.coordinate())[static_cast<std::size_t>(dim)]);
  stack.resize(base);
  stack.emplace_back(local.split_with_sizes(sizes, dim));
}

// Pieces of these sizes where they are whole parts of a packed dimension, else nothing.
std::optional<Rule> packed_pieces(const OperatorCall& call, std::int64_t dim, const std::vector<std::int64_t>& sizes) {
  const auto& self = call.operand(0);
  const int mesh_dim = only_cut(self, dim);
  if (mesh_dim < 0 || !self.placement(mesh_dim).is_interleaved()) return std::nullopt;
  const auto parts = self.placement(mesh_dim).parts();
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  builder.at(letters[static_cast<std::size_t>(dim)]).packing = Factor::Packing::split;
  std::size_t next = 0;
  for (const auto size : sizes) {
    const auto first = next;
    std::int64_t taken = 0;
    while (next < parts.size() && (taken < size || next == first)) taken += parts[next++];
    if (taken != size) return std::nullopt;
    auto result = self.sizes.vec();
    result[static_cast<std::size_t>(dim)] = size;
    builder.sized_result(letters, std::move(result));
    builder.rule().results.back().parts = {first, next - first};
  }
  if (next != parts.size()) return std::nullopt;
  return builder.passes_any_pending().view().by_sizes().list_result().kernel(local_split).build();
}

std::optional<Rule> pieces_of(const OperatorCall& call, std::int64_t dim, const std::vector<std::int64_t>& sizes) {
  if (auto packed = packed_pieces(call, dim, sizes)) return packed;
  return pieces(call, dim, static_cast<std::int64_t>(sizes.size()), false);
}

// split.Tensor(self, split_size, dim)
std::optional<Rule> split(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  const auto size = call.argument(1).toInt();
  if (dim < 0 || dim >= ndim || size < 0) return std::nullopt;
  const auto have = call.operand(0).sizes[static_cast<std::size_t>(dim)];
  if (size == 0 && have != 0) return std::nullopt;
  std::vector<std::int64_t> sizes;
  for (std::int64_t at = 0; at < have; at += size) sizes.push_back(std::min(size, have - at));
  if (sizes.empty()) sizes.push_back(0);
  return pieces_of(call, dim, sizes);
}
// split_with_sizes(self, split_sizes, dim)
std::optional<Rule> split_with_sizes(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  return pieces_of(call, dim, call.argument(1).toIntVector());
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
  const bool cut = call.operand(0).is_cut(dim);
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

// The same with memory of their own.
void local_split_copy(const KernelContext& context, std::vector<c10::IValue>& stack) {
  local_split(context, stack);
  auto copies = stack.back().toTensorVector();
  for (auto& piece : copies) piece = piece.clone();
  stack.back() = copies;
}
template <RuleFunction function>
std::optional<Rule> split_copy_of(const OperatorCall& call) {
  auto rule = copy_of<function>(call);
  if (rule && rule->kernel) rule->kernel = local_split_copy;
  return rule;
}

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
  add_rule("aten::unsafe_split.Tensor", reduced<split_copy_of<split>>);
  add_rule("aten::unsafe_split_with_sizes", reduced<split_copy_of<split_with_sizes>>);
  add_rule("aten::split_copy.Tensor", split_copy_of<split>);
  add_rule("aten::split_with_sizes_copy", split_copy_of<split_with_sizes>);
  add_rule("aten::unbind_copy.int", copy_of<unbind>);
  add_rule("aten::slice_copy.Tensor", copy_of<slice, local_slice>);
  add_rule("aten::select_copy.int", copy_of<select>);
}

}  // namespace dtensor
