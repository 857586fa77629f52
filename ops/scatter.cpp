// Writing elements by index. Dimensions that no index speaks of pass. Where the dimension written into is cut, what is
// written and where is whole, and each rank keeps what falls into its piece: the tensor written to never moves.
#include "ops/indexed_dims.h"
#include "ops/local_indices.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

namespace dtensor {
namespace {

std::int64_t dim_of(const OperatorCall& call) {
  return OperatorCall::wrap_dim(call.argument(1).toInt(), call.operand(0).ndim());
}

bool is_zero(const c10::IValue& value) { return value.isScalar() && value.toScalar().equal(0); }

// What the call returns where nothing falls into this rank's piece.
void leave_unchanged(const KernelContext& context, std::vector<c10::IValue>& stack, std::size_t base) {
  const auto self = stack[base].toTensor();
  stack.resize(base);
  stack.emplace_back(works_in_place(context) ? self : self.clone());
}

// The rows of index or src that face this rank's piece of self in a dimension where only self is cut, as index does not
// reach as far. They face the first rows of the piece, whose runs rise.
at::Tensor facing_rows(const KernelContext& context, const at::Tensor& whole, std::int64_t dim) {
  const auto end = context.operands[1].sizes[static_cast<std::size_t>(dim)];
  std::vector<at::Tensor> rows;
  for (const auto& run : context.intervals(0, dim))
    if (run.offset < end) rows.push_back(whole.narrow(dim, run.offset, std::min(run.size, end - run.offset)));
  return rows.empty() ? whole.narrow(dim, 0, 0) : at::cat(rows, dim);
}

// The scatters into a cut dimension: a row is added to the piece, foreign elements go there, and it is dropped.
void local_scatter(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto ndim = context.operands[0].ndim(), dim = OperatorCall::wrap_dim(stack[base + 1].toInt(), ndim);
  for (std::int64_t other = 0; other < ndim; ++other) {
    if (other == dim || !context.is_cut(0, other) || context.is_cut(1, other)) continue;
    stack[base + 2] = facing_rows(context, stack[base + 2].toTensor(), other);
    if (context.operands.size() > 2)
      stack[base + 3] = facing_rows(context, stack[base + 3].toTensor(), other);
  }
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto self = stack[base].toTensor();
  const auto size = self.size(dim);
  auto sizes = self.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = 1;
  const auto local = local_indices(context, 0, dim, stack[base + 2].toTensor());
  stack[base] = at::cat({self, at::zeros(sizes, self.options())}, dim);
  stack[base + 2] = local.indices.masked_fill(local.foreign, size);
  context.call_stock(stack);
  const auto written = stack[base].toTensor().narrow(dim, 0, size);
  stack[base] = works_in_place(context) ? self.copy_(written) : written.contiguous();
}

// scatter.src(self, dim, index, src), scatter.value(self, dim, index, value), scatter.reduce, scatter.value_reduce,
// scatter_add, scatter_reduce.two: self passes; index and src are cut with it where index reaches as far, and src no
// further, in dimensions other than `dim`.
std::optional<Rule> scatter(const OperatorCall& call, bool linear) {
  const auto &self = call.operand(0), &index = call.operand(1);
  const auto dim = dim_of(call);
  const bool with_source = call.operands.size() > 2;
  if (self.ndim() == 0 || index.ndim() != self.ndim() || dim < 0 || dim >= self.ndim()) return std::nullopt;
  if (with_source && call.operand(2).ndim() != self.ndim()) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  auto places = letters, source = letters;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const bool as_far = !with_source || call.operand(2).sizes[i] == index.sizes[i];
    const bool same = static_cast<std::int64_t>(i) != dim && index.sizes[i] == self.sizes[i] && as_far;
    if (same) continue;
    places[i] = builder.factor(Factor::Kind::whole);
    source[i] = no_factor;
  }
  builder.operand(1, places);
  if (with_source) builder.operand(2, source);
  if (linear) builder.linear(with_source ? std::vector<int>{0, 2} : std::vector<int>{0});
  return builder.result(letters).kernel(local_scatter).by_sizes().build();
}

std::optional<Rule> scatter_source(const OperatorCall& call) { return scatter(call, true); }
std::optional<Rule> scatter_value(const OperatorCall& call) {
  return scatter(call, is_zero(call.argument(3)));
}
std::optional<Rule> scatter_value_reduce(const OperatorCall& call) { return scatter(call, false); }
// Whether a reduction named by argument 4 is linear; a mean of integers is rounded.
bool linear_by_name(const OperatorCall& call) {
  const auto& reduce = call.argument(4).toStringRef();
  return reduce == "add" || reduce == "sum" ||
         (reduce == "mean" && !c10::isIntegralType(call.operand(0).dtype, true));
}
std::optional<Rule> scatter_by_name(const OperatorCall& call) { return scatter(call, linear_by_name(call)); }

// Rows of a cut dimension: those that fall into this rank's piece.
void local_rows(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto dim = OperatorCall::wrap_dim(stack[base + 1].toInt(), context.operands[0].ndim());
  if (!context.is_cut(0, dim)) return context.call_stock(stack);
  const auto index = stack[base + 2].toTensor().reshape({-1});
  const bool from_end = context.op.schema().name().rfind("aten::index_fill", 0) == 0;  // alone it takes those
  const auto local = local_indices(context, 0, dim, index, from_end);
  const auto mine = local.foreign.logical_not().nonzero().flatten();
  if (mine.numel() == 0) return leave_unchanged(context, stack, base);
  stack[base + 2] = local.indices.index_select(0, mine);
  const bool rows = context.operands.size() > 2 && context.operands[2].ndim() > 0;
  if (rows) stack[base + 3] = stack[base + 3].toTensor().index_select(dim, mine);
  context.call_stock(stack);
}

// index_add(self, dim, index, source, *, alpha), index_copy, index_reduce, index_fill.int_Scalar(self, dim, index,
// value), index_fill.int_Tensor: self passes; index and source are whole in `dim`, the source's other dimensions pass.
std::optional<Rule> rows(const OperatorCall& call, bool linear) {
  const auto &self = call.operand(0), &index = call.operand(1);
  const auto dim = dim_of(call);
  if (self.ndim() == 0 || index.ndim() > 1 || dim < 0 || dim >= self.ndim()) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  builder.result(letters);
  const auto places = builder.letters(1, Factor::Kind::whole);
  if (call.operands.size() > 2 && call.operand(2).ndim() > 0) {
    if (call.operand(2).ndim() != self.ndim()) return std::nullopt;
    letters[static_cast<std::size_t>(dim)] = places.empty() ? no_factor : places[0];
    builder.operand(2, letters);
  }
  if (linear) builder.linear(call.operands.size() > 2 ? std::vector<int>{0, 2} : std::vector<int>{0});
  return builder.kernel(local_rows).build();
}

std::optional<Rule> rows_of_source(const OperatorCall& call) {
  if (call.operand(2).ndim() == 0) return std::nullopt;
  return rows(call, true);
}
std::optional<Rule> rows_of_value(const OperatorCall& call) {
  return rows(call, call.operands.size() > 2 || is_zero(call.argument(3)));
}
std::optional<Rule> index_reduce(const OperatorCall& call) {
  if (call.operand(2).ndim() == 0) return std::nullopt;
  return rows(call, linear_by_name(call));
}

// index_put with some of its indexed dimensions cut: the places and values that fall into this rank's piece, as rows.
void local_index_put(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  auto indices = stack[base + 1].toOptionalTensorVector();
  const IndexedDims dims(context.operands.subspan(1, indices.size()));
  at::Tensor foreign;
  for (auto dim : dims.indexed) {
    if (!dims.by_number || !context.is_cut(0, dim)) continue;
    auto& index = indices[static_cast<std::size_t>(dim)];
    const auto local = local_indices(context, 0, dim, *index, true);
    index = local.indices;
    foreign = foreign.defined() ? foreign.logical_or(local.foreign) : local.foreign;
  }
  if (!foreign.defined()) return context.call_stock(stack);
  const auto mine = foreign.expand(dims.sizes).reshape({-1}).logical_not().nonzero().flatten();
  if (mine.numel() == 0 || self.numel() == 0) return leave_unchanged(context, stack, base);
  for (auto dim : dims.indexed) {
    auto& index = indices[static_cast<std::size_t>(dim)];
    index = index->expand(dims.sizes).reshape({-1}).index_select(0, mine);
  }
  const auto written = dims.replaced(self.sizes().vec(), dims.sizes);
  const auto flat = dims.replaced(self.sizes().vec(), {c10::multiply_integers(dims.sizes)});
  const auto values =
      stack[base + 2].toTensor().expand(written).reshape(flat).index_select(dims.position, mine);
  stack[base + 1] = c10::List<std::optional<at::Tensor>>(indices);
  stack[base + 2] = values;
  context.call_stock(stack);
}

// index_put(self, mask, value) with one mask and one value: element-wise; the mask's dimensions are self's.
std::optional<Rule> masked_put(const OperatorCall& call, const IndexedDims& dims) {
  const auto &self = call.operand(0), &values = call.operands.back();
  if (dims.indexed.size() != 1 || c10::multiply_integers(values.sizes) != 1) return std::nullopt;
  const auto first = static_cast<std::size_t>(dims.indexed[0]);
  const auto& mask = call.operand(first + 1);
  // A mask of no dimensions adds one.
  if (mask.ndim() == 0 || first + mask.sizes.size() > self.sizes.size()) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  const auto begin = letters.begin() + static_cast<std::ptrdiff_t>(first);
  builder.operand(first + 1, {begin, begin + mask.ndim()});
  builder.operand(call.operands.size() - 1, std::vector<int>(values.sizes.size(), no_factor));
  return builder.result(letters)
      .linear({0, static_cast<int>(call.operands.size()) - 1})
      .kernel(local_index_put)
      .build();
}

// index_put(self, indices, values, accumulate): dimensions of self pass; indices are whole, and so are values where
// they broadcast to the indices' dimensions.
std::optional<Rule> index_put(const OperatorCall& call) {
  const auto &self = call.operand(0), &values = call.operands.back();
  const IndexedDims dims(call.operands.subspan(1, call.operands.size() - 2));
  if (dims.indexed.empty() || static_cast<std::int64_t>(call.operands.size()) - 2 > self.ndim())
    return std::nullopt;
  if (!dims.by_number) return masked_put(call, dims);
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  const auto written = dims.replaced(letters, dims.broadcast(builder, Factor::Kind::whole));
  if (values.sizes.size() > written.size()) return std::nullopt;
  std::vector<int> source(written.end() - static_cast<std::ptrdiff_t>(values.sizes.size()), written.end());
  for (std::size_t i = 0; i < source.size(); ++i)
    if (values.sizes[i] == 1) source[i] = no_factor;
  const auto last = call.operands.size() - 1;
  builder.operand(last, source).result(letters).linear({0, static_cast<int>(last)});
  return builder.kernel(local_index_put).build();
}

}  // namespace

void detail::add_scatter_rules() {
  add_rule("aten::scatter.src", scatter_source);
  add_rule("aten::scatter.value", RuleEntry{scatter_value, true, false});
  add_rule("aten::scatter.reduce", scatter_by_name);
  add_rule("aten::scatter.value_reduce", scatter_value_reduce);
  add_rule("aten::scatter_add", scatter_source);
  add_rule("aten::scatter_reduce.two", scatter_by_name);
  add_rule("aten::index_add", rows_of_source);
  add_rule("aten::index_copy", rows_of_source);
  add_rule("aten::index_fill.int_Scalar", RuleEntry{rows_of_value, true, false});
  add_rule("aten::index_fill.int_Tensor", rows_of_value);
  add_rule("aten::index_reduce", index_reduce);
  for (const char* name : {"aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl"})
    add_rule(name, index_put);
}

}  // namespace dtensor
