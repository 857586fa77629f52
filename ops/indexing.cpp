// Reading elements by index. Dimensions that no index speaks of pass; those of the index pass to the result. Where the
// dimension indexed into is cut, each rank reads what it holds, as of an embedding table cut by vocabulary: zeros stand
// for the rest, and the result is a pending sum. That pays where less is read than is there.
#include "ops/indexed_dims.h"
#include "ops/local_indices.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace dtensor {
namespace {

std::int64_t product(c10::IntArrayRef sizes) { return c10::multiply_integers(sizes); }

// The factor of a dimension that is indexed into: `read` elements of each `there`.
int indexed_factor(RuleBuilder& builder, std::int64_t read, std::int64_t there, c10::ScalarType dtype) {
  return read < there ? builder.factor(Factor::Kind::reduce, sum_of_masked(dtype))
                      : builder.factor(Factor::Kind::whole);
}

// An empty piece has no element that could stand for foreign ones: one zero does.
at::Tensor with_an_element(const at::Tensor& self, std::int64_t dim) {
  if (self.size(dim) > 0) return self;
  auto sizes = self.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = 1;
  return at::zeros(sizes, self.options());
}

void local_gather(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto dim = OperatorCall::wrap_dim(stack[base + 1].toInt(), context.operands[0].ndim());
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto local = local_indices(context, 0, dim, stack[base + 2].toTensor());
  stack[base] = with_an_element(stack[base].toTensor(), dim);
  stack[base + 2] = local.indices;
  context.call_stock(stack);
  stack[base].toTensor().masked_fill_(local.foreign, 0);
}

// gather(self, dim, index, *, sparse_grad) -> like index. A dimension other than `dim` passes where index reaches
// as far as self.
std::optional<Rule> gather(const OperatorCall& call) {
  const auto &self = call.operand(0), &index = call.operand(1);
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), self.ndim());
  if (self.ndim() == 0 || index.ndim() != self.ndim() || dim < 0 || dim >= self.ndim()) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(1);
  auto from = letters;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (static_cast<std::int64_t>(i) == dim) {
      from[i] = indexed_factor(builder, product(index.sizes), product(self.sizes), self.dtype);
    } else if (self.sizes[i] != index.sizes[i]) {
      from[i] = no_factor;
      builder.at(letters[i]).kind = Factor::Kind::whole;
    }
  }
  return builder.operand(0, from).result(letters).linear({0}).kernel(local_gather).by_sizes().build();
}

void local_index_select(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto dim = OperatorCall::wrap_dim(stack[base + 1].toInt(), context.operands[0].ndim());
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto local = local_indices(context, 0, dim, stack[base + 2].toTensor());
  stack[base] = with_an_element(stack[base].toTensor(), dim);
  stack[base + 2] = local.indices;
  context.call_stock(stack);
  auto result = stack[base].toTensor();
  std::vector<std::int64_t> along(static_cast<std::size_t>(result.dim()), 1);
  along[static_cast<std::size_t>(dim)] = result.size(dim);
  result.masked_fill_(local.foreign.reshape(along), 0);
}

// index_select(self, dim, index): the index's dimension takes the place of `dim`.
std::optional<Rule> index_select(const OperatorCall& call) {
  const auto &self = call.operand(0), &index = call.operand(1);
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), self.ndim());
  if (self.ndim() == 0 || index.ndim() > 1 || dim < 0 || dim >= self.ndim()) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  const auto places = builder.letters(1);
  auto& along = letters[static_cast<std::size_t>(dim)];
  along =
      indexed_factor(builder, product(index.sizes), self.sizes[static_cast<std::size_t>(dim)], self.dtype);
  builder.operand(0, letters);
  along = places.empty() ? no_factor : places[0];
  return builder.result(letters).linear({0}).kernel(local_index_select).by_sizes().build();
}

// index.Tensor with some of its indexed dimensions cut.
void local_index(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  auto self = stack[base].toTensor();
  auto indices = stack[base + 1].toOptionalTensorVector();
  const IndexedDims dims(context.operands.subspan(1, indices.size()));
  at::Tensor foreign;
  for (auto dim : dims.indexed) {
    if (!context.is_cut(0, dim)) continue;
    auto& index = indices[static_cast<std::size_t>(dim)];
    const auto local = local_indices(context, 0, dim, *index, true);
    index = local.indices;
    self = with_an_element(self, dim);
    foreign = foreign.defined() ? foreign.logical_or(local.foreign) : local.foreign;
  }
  if (!foreign.defined()) return context.call_stock(stack);
  stack[base] = self;
  stack[base + 1] = c10::List<std::optional<at::Tensor>>(indices);
  context.call_stock(stack);
  // The indices' dimensions end before the dimensions of self that follow them.
  auto result = stack[base].toTensor();
  const auto after = result.dim() - dims.position - dims.ndim;
  for (std::int64_t i = 0; i < after; ++i) foreign = foreign.unsqueeze(-1);
  result.masked_fill_(foreign, 0);
}

// index.Tensor(self, indices): dimensions without an index pass; the indices broadcast against each other, and their
// dimensions pass to the result. How many elements a mask selects only its values tell: no rule.
std::optional<Rule> index(const OperatorCall& call) {
  const auto& self = call.operand(0);
  const IndexedDims dims(call.operands.subspan(1));
  if (!dims.by_number || static_cast<std::int64_t>(call.operands.size()) - 1 > self.ndim())
    return std::nullopt;
  RuleBuilder builder(call);
  const auto places = dims.broadcast(builder, Factor::Kind::pass);
  auto letters = builder.letters(0);
  std::int64_t there = 1;
  for (auto dim : dims.indexed) there *= self.sizes[static_cast<std::size_t>(dim)];
  for (auto dim : dims.indexed)
    letters[static_cast<std::size_t>(dim)] = indexed_factor(builder, product(dims.sizes), there, self.dtype);
  const auto result = dims.replaced(letters, places);
  return builder.operand(0, letters).result(result).linear({0}).kernel(local_index).by_sizes().build();
}

// take(self, index) reads self as flat: whole.
std::optional<Rule> take(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.letters(0, Factor::Kind::whole);
  return builder.result(builder.letters(1)).linear({0}).build();
}

// searchsorted.Tensor(sorted_sequence, self, *, ..., sorter?): the sequence is whole in its last dimension, the others
// are those of self.
std::optional<Rule> searchsorted(const OperatorCall& call) {
  const auto &sequence = call.operand(0), &self = call.operand(1);
  if (sequence.ndim() == 0 || (sequence.ndim() > 1 && sequence.ndim() != self.ndim())) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(1);
  auto from = letters;
  if (sequence.ndim() == 1) from.assign(1, no_factor);
  from.back() = builder.factor(Factor::Kind::whole);
  builder.operand(0, from);
  if (call.operands.size() > 2 && call.operand(2).defined) builder.operand(2, from);
  return builder.result(letters).build();
}

// isin.Tensor_Tensor(elements, test_elements): elements pass, what they are looked for in is whole.
std::optional<Rule> isin(const OperatorCall& call) {
  RuleBuilder builder(call);
  if (call.operands.size() > 1) builder.letters(1, Factor::Kind::whole);
  return builder.result(builder.letters(0)).build();
}

// _embedding_bag(weight [V, h], indices, offsets, ..., per_sample_weights?) -> bags [B, h], and where they came from,
// which is alike on all ranks: h passes.
std::optional<Rule> embedding_bag(const OperatorCall& call) {
  const bool maximum = call.argument(4).toInt() == 2;
  if (call.operand(0).ndim() != 2 || call.argument(5).toBool()) return std::nullopt;
  RuleBuilder builder(call);
  const int vocabulary = builder.factor(Factor::Kind::whole), hidden = builder.factor();
  builder.operand(0, {vocabulary, hidden});
  for (std::size_t i = 1; i < call.operands.size(); ++i)
    if (call.operand(i).defined) builder.letters(i, Factor::Kind::whole);
  builder.result({no_factor, hidden}).alike_result({no_factor}).alike_result({no_factor});
  if (maximum) return builder.result({no_factor, hidden}).build();
  return builder.alike_result({no_factor}).build();
}

// _embedding_bag_backward(grad [B, h], indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, ...,
// per_sample_weights?) -> [V, h]: h passes.
std::optional<Rule> embedding_bag_backward(const OperatorCall& call) {
  const bool maximum = call.argument(8).toInt() == 2;
  if (call.operand(0).ndim() != 2 || call.argument(9).toBool()) return std::nullopt;
  RuleBuilder builder(call);
  const int bags = builder.factor(Factor::Kind::whole), hidden = builder.factor();
  for (std::size_t i = 1; i < call.operands.size(); ++i)
    if (call.operand(i).defined) builder.letters(i, Factor::Kind::whole);
  builder.operand(0, {bags, hidden});
  if (maximum && call.operand(5).ndim() == 2) builder.operand(5, {bags, hidden});
  return builder.result({no_factor, hidden}).linear({0}).build();
}

}  // namespace

void detail::add_indexing_rules() {
  add_rule("aten::gather", gather);
  add_rule("aten::index_select", index_select);
  add_rule("aten::index.Tensor", index);
  add_rule("aten::_unsafe_index.Tensor", index);
  add_rule("aten::take", take);
  add_rule("aten::bucketize.Tensor", by_text<"...,B->...">);
  add_rule("aten::searchsorted.Tensor", searchsorted);
  add_rule("aten::isin.Tensor_Tensor", isin);
  add_rule("aten::isin.Tensor_Scalar", isin);
  add_rule("aten::_embedding_bag", embedding_bag);
  add_rule("aten::_embedding_bag_forward_only", embedding_bag);
  add_rule("aten::_embedding_bag_backward", embedding_bag_backward);
  add_rule("aten::_embedding_bag_per_sample_weights_backward", by_text<"*Bh,Vh,N,O,P->N">);
}

}  // namespace dtensor
