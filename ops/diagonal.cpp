// Diagonals of two dimensions: reading one, writing it, and building from it. Other dimensions pass. Where the diagonal has
// an element for each row (or each column), rows (columns) may be cut, and the diagonal is cut with them.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"
#include "ops/view_copies.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <optional>

namespace dtensor {
namespace {

constexpr auto none = static_cast<std::size_t>(-1);  // no dimension

struct Diagonal {
  std::size_t rows = 0, columns = 0;  // dimensions, counted from the front
  std::int64_t offset = 0;
  bool has_all_rows = false, has_all_columns = false;
};

// Arguments `first` to `first + 2` are offset, dim1 and dim2.
std::optional<Diagonal> diagonal_of(std::span<const c10::IValue> arguments, std::size_t first,
                                    c10::IntArrayRef sizes) {
  const auto ndim = static_cast<std::int64_t>(sizes.size());
  const auto rows = OperatorCall::wrap_dim(arguments[first + 1].toInt(), ndim),
             columns = OperatorCall::wrap_dim(arguments[first + 2].toInt(), ndim);
  if (rows < 0 || columns < 0 || rows >= ndim || columns >= ndim || rows == columns) return std::nullopt;
  Diagonal diagonal{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), arguments[first].toInt()};
  const auto height = sizes[diagonal.rows], width = sizes[diagonal.columns];
  diagonal.has_all_rows = diagonal.offset >= 0 && height <= width - diagonal.offset;
  diagonal.has_all_columns = diagonal.offset <= 0 && width <= height + diagonal.offset;
  return diagonal;
}

// The dimension whose cut the diagonal follows: of two that would do, the one that is cut. Interleaved pieces are no part
// of one diagonal.
std::size_t followed(const OperatorCall& call, const Diagonal& diagonal) {
  bool columns_cut = false;
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim) {
    const auto placement = call.operand(0).placement(mesh_dim);
    if (placement.is_interleaved()) return none;
    columns_cut = columns_cut || (placement.is_sharded() && placement.dim() == static_cast<std::int64_t>(diagonal.columns));
  }
  if (diagonal.has_all_columns && (columns_cut || !diagonal.has_all_rows)) return diagonal.columns;
  return diagonal.has_all_rows ? diagonal.rows : none;
}

// The offset of the diagonal in this rank's part of operand 0.
std::int64_t local_offset(const KernelContext& context, const Diagonal& diagonal) {
  const auto begin = [&](std::size_t dim) {
    const auto runs = context.intervals(0, static_cast<std::int64_t>(dim));
    return runs.empty() ? 0 : runs.front().offset;
  };
  return diagonal.offset + begin(diagonal.rows) - begin(diagonal.columns);
}

at::Tensor view_of(const at::Tensor& local, const Diagonal& diagonal, std::int64_t offset) {
  return at::diagonal(local, offset, static_cast<std::int64_t>(diagonal.rows), static_cast<std::int64_t>(diagonal.columns));
}

// The letters of operand 0, a matrix in two of its dimensions, and of its diagonal, whose elements come last.
struct Letters {
  std::vector<int> matrix, diagonal;
};
Letters letters_of(RuleBuilder& builder, const OperatorCall& call, const Diagonal& diagonal) {
  Letters letters{builder.letters(0), {}};
  const auto kept = followed(call, diagonal);
  for (std::size_t dim = 0; dim < letters.matrix.size(); ++dim) {
    if (dim != diagonal.rows && dim != diagonal.columns)
      letters.diagonal.push_back(letters.matrix[dim]);
    else if (dim != kept)
      builder.at(letters.matrix[dim]).kind = Factor::Kind::whole;
  }
  letters.diagonal.push_back(kept == none ? no_factor : letters.matrix[kept]);
  return letters;
}

// diagonal(self, offset, dim1, dim2)
void local_diagonal(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto diagonal = *diagonal_of(context.global_arguments, 1, context.operands[0].sizes);
  const auto result = view_of(stack[base].toTensor(), diagonal, local_offset(context, diagonal));
  stack.resize(base);
  stack.emplace_back(result);
}
std::optional<Rule> diagonal(const OperatorCall& call) {
  const auto place = diagonal_of(call.arguments, 1, call.operand(0).sizes);
  if (!place) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = letters_of(builder, call, *place);
  return builder.result(letters.diagonal).passes_any_pending().kernel(local_diagonal).by_sizes().view().build();
}

// diagonal_scatter(self, src, offset, dim1, dim2)
void local_diagonal_scatter(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto diagonal = *diagonal_of(context.global_arguments, 2, context.operands[0].sizes);
  const auto result = stack[base].toTensor().clone(at::MemoryFormat::Contiguous);
  view_of(result, diagonal, local_offset(context, diagonal)).copy_(stack[base + 1].toTensor());
  stack.resize(base);
  stack.emplace_back(result);
}
std::optional<Rule> diagonal_scatter(const OperatorCall& call) {
  const auto place = diagonal_of(call.arguments, 2, call.operand(0).sizes);
  if (!place || call.operand(1).ndim() != call.operand(0).ndim() - 1) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = letters_of(builder, call, *place);
  builder.operand(1, letters.diagonal).result(letters.matrix).linear({0, 1});
  return builder.kernel(local_diagonal_scatter).by_sizes().build();
}

// Zeros with the diagonal that operand 0 holds in its last dimension.
at::Tensor spread(const KernelContext& context, const at::Tensor& elements, const Diagonal& diagonal,
                  std::vector<std::int64_t> sizes) {
  const auto runs = context.intervals(0, context.operands[0].ndim() - 1);
  const auto begin = runs.empty() ? 0 : runs.front().offset;
  const auto result = at::zeros(sizes, elements.options());
  view_of(result, diagonal, diagonal.offset + (diagonal.has_all_rows ? begin : -begin)).copy_(elements);
  return result;
}

// The letters of such a result, of `sizes`.
std::vector<int> spread_letters(RuleBuilder& builder, const OperatorCall& call, const Diagonal& diagonal,
                                std::size_t ndim) {
  const auto elements = builder.letters(0);
  auto kept = none;
  if (diagonal.has_all_rows)
    kept = diagonal.rows;
  else if (diagonal.has_all_columns)
    kept = diagonal.columns;
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim)
    if (call.operand(0).placement(mesh_dim).is_interleaved()) kept = none;
  if (kept == none) builder.at(elements.back()).kind = Factor::Kind::whole;
  std::vector<int> letters;
  std::size_t next = 0;
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    if (dim == kept)
      letters.push_back(elements.back());
    else
      letters.push_back(dim == diagonal.rows || dim == diagonal.columns ? no_factor : elements[next++]);
  }
  return letters;
}

// diagonal_backward(grad, input_sizes, offset, dim1, dim2)
void local_diagonal_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto diagonal = *diagonal_of(context.global_arguments, 2, context.global_arguments[1].toIntVector());
  const auto result = spread(context, stack[base].toTensor(), diagonal, stack[base + 1].toIntVector());
  stack.resize(base);
  stack.emplace_back(result);
}
std::optional<Rule> diagonal_backward(const OperatorCall& call) {
  auto sizes = call.argument(1).toIntVector();
  const auto place = diagonal_of(call.arguments, 2, sizes);
  if (!place || call.operand(0).sizes.size() + 1 != sizes.size()) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = spread_letters(builder, call, *place, sizes.size());
  builder.sized_result(letters, std::move(sizes)).size_argument(1).linear({0});
  return builder.kernel(local_diagonal_backward).by_sizes().build();
}

// The sizes of diag_embed(self [..., n], offset, dim1, dim2): two dimensions of n + |offset| elements.
std::vector<std::int64_t> embedded_sizes(c10::IntArrayRef self, const Diagonal& diagonal) {
  std::vector<std::int64_t> sizes;
  std::size_t next = 0;
  for (std::size_t dim = 0; dim < self.size() + 1; ++dim)
    sizes.push_back(dim == diagonal.rows || dim == diagonal.columns ? self.back() + std::abs(diagonal.offset) : self[next++]);
  return sizes;
}
// The diagonal of that result; arguments name its dimensions, so their sizes do not matter to find them.
std::optional<Diagonal> embedded(std::span<const c10::IValue> arguments, c10::IntArrayRef self) {
  auto place = diagonal_of(arguments, 1, std::vector<std::int64_t>(self.size() + 1, 0));
  return place ? diagonal_of(arguments, 1, embedded_sizes(self, *place)) : std::nullopt;
}
void local_diag_embed(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  const auto diagonal = *embedded(context.global_arguments, context.operands[0].sizes);
  auto sizes = embedded_sizes(self.sizes(), diagonal);
  const auto size = context.operands[0].sizes.back() + std::abs(diagonal.offset);
  sizes[diagonal.rows] = diagonal.has_all_rows ? self.size(-1) : size;
  sizes[diagonal.columns] = diagonal.has_all_columns && !diagonal.has_all_rows ? self.size(-1) : size;
  const auto result = spread(context, self, diagonal, sizes);
  stack.resize(base);
  stack.emplace_back(result);
}
std::optional<Rule> diag_embed(const OperatorCall& call) {
  if (call.operand(0).ndim() < 1) return std::nullopt;
  const auto place = embedded(call.arguments, call.operand(0).sizes);
  if (!place) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = spread_letters(builder, call, *place, call.operand(0).sizes.size() + 1);
  return builder.result(letters).linear({0}).kernel(local_diag_embed).by_sizes().build();
}

}  // namespace

void detail::add_diagonal_rules() {
  add_rule("aten::diagonal", diagonal);
  add_rule("aten::diagonal_copy", copy_of<diagonal, local_diagonal>);
  add_rule("aten::diagonal_scatter", diagonal_scatter);
  add_rule("aten::diagonal_backward", diagonal_backward);
  add_rule("aten::diag_embed", diag_embed);
}

}  // namespace dtensor
