// Writing elements in the order of the flattened tensor: masked_scatter, whose k-th marked element takes the k-th of the
// source, and put, whose indices count through all dimensions. What is written is whole; the tensor written to is cut as
// it is, and each rank works out which elements fall to it.
#include "ops/local_indices.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>
#include <vector>

namespace dtensor {
namespace {

// The dimension of `operand` that is cut, or -1. The rules below let one alone be cut.
std::int64_t cut_dim(const KernelContext& context, std::size_t operand) {
  for (std::int64_t dim = 0; dim < context.operands[operand].ndim(); ++dim)
    if (context.is_cut(operand, dim)) return dim;
  return -1;
}

// masked_scatter(self, mask, source). The marked elements before this rank's: those of the rows before, on all ranks, and
// those of the same row in the pieces before; a row has the indices of the dimensions before the cut one.
void local_masked_scatter(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto sizes = at::infer_size(context.operands[0].sizes, context.operands[1].sizes);
  const auto ndim = static_cast<std::int64_t>(sizes.size());
  std::int64_t dim = -1, piece = 0;
  for (const std::size_t operand : {0, 1})
    if (const auto cut = cut_dim(context, operand); cut >= 0)
      dim = cut + ndim - context.operands[operand].ndim(), piece = context.piece(operand, cut);
  if (dim < 0) return context.call_stock(stack);
  auto self = stack[base].toTensor(), mask = stack[base + 1].toTensor();
  const auto source = stack[base + 2].toTensor();
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i < dim; ++i) rows *= sizes[static_cast<std::size_t>(i)];
  const auto local_sizes = at::infer_size(self.sizes(), mask.sizes());
  mask = mask.expand(local_sizes).contiguous();
  const auto marked = mask.view({rows, mask.numel() / std::max<std::int64_t>(rows, 1)});
  const std::size_t cut_operand = cut_dim(context, 0) >= 0 ? 0 : 1;
  // In 32 bits where they fit: these numbers are all that moves.
  const bool many = c10::multiply_integers(sizes) > std::numeric_limits<std::int32_t>::max();
  const auto own = marked.sum({1}, false, many ? at::kLong : at::kInt);
  const auto counts = context.gather_pieces(own, cut_operand, cut_dim(context, cut_operand)).t().to(at::kLong).contiguous();
  TORCH_CHECK(counts.sum().item<std::int64_t>() <= source.numel(),
              "masked_scatter: expected source to have at least as many elements as the mask marks");
  const auto before = (counts.flatten().cumsum(0) - counts.flatten()).view(counts.sizes()).select(1, piece);
  auto result = self.expand(local_sizes);
  if (source.numel() != 0 && mask.numel() != 0) {
    const auto place = (marked.cumsum(1) - 1 + before.unsqueeze(1)).clamp(0, source.numel() - 1).view(local_sizes);
    result = at::where(mask, source.flatten().index_select(0, place.flatten()).view(local_sizes), result);
  }
  stack.resize(base);
  stack.emplace_back(works_in_place(context) ? self.copy_(result) : result.clone(at::MemoryFormat::Contiguous));
}

// Letters for an operand of which one dimension alone may be cut: the first that is, in either tensor, and by interleaved
// pieces in neither. (They are not in the order of the elements.)
std::optional<Rule> masked_scatter(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.pointwise(2);
  builder.letters(2, Factor::Kind::whole);
  int passing = no_factor;
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim)
    for (const std::size_t operand : {0, 1}) {
      const auto placement = call.operand(operand).placement(mesh_dim);
      if (!placement.is_sharded() || placement.is_interleaved() || passing != no_factor) continue;
      passing = builder.rule().operands[operand][static_cast<std::size_t>(placement.dim())];
    }
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim)
    for (const std::size_t operand : {0, 1}) {
      const auto placement = call.operand(operand).placement(mesh_dim);
      if (placement.is_interleaved() &&
          builder.rule().operands[operand][static_cast<std::size_t>(placement.dim())] == passing)
        passing = no_factor;
    }
  for (std::size_t i = 0; i < builder.rule().factors.size(); ++i)
    if (static_cast<int>(i) != passing) builder.at(static_cast<int>(i)).kind = Factor::Kind::whole;
  return builder.kernel(local_masked_scatter).build();
}

// put(self, index, source, accumulate)
void local_put(const KernelContext& context, std::vector<c10::IValue>& stack) {
  if (cut_dim(context, 0) < 0) return context.call_stock(stack);
  const auto base = stack.size() - context.global_arguments.size();
  const auto self = stack[base].toTensor();
  const auto& sizes = context.operands[0].sizes;
  const auto count = c10::multiply_integers(sizes);
  auto place = stack[base + 1].toTensor().flatten();
  if (place.numel() > 0 && place.device().is_cpu())
    TORCH_CHECK_INDEX(place.min().item<std::int64_t>() >= -count && place.max().item<std::int64_t>() < count,
                      "put: index out of range for a tensor of ", count, " elements");
  place = at::where(place.lt(0), place + count, place);
  auto local_place = at::zeros_like(place), mine = at::ones_like(place, place.options().dtype(at::kBool));
  std::int64_t inner = count;
  for (std::int64_t dim = 0; dim < context.operands[0].ndim(); ++dim) {
    const auto size = sizes[static_cast<std::size_t>(dim)];
    inner /= std::max<std::int64_t>(size, 1);
    const auto index = at::remainder(at::floor_divide(place, std::max<std::int64_t>(inner, 1)), std::max<std::int64_t>(size, 1));
    const auto local = local_indices(context, 0, dim, index);
    local_place = local_place * self.size(dim) + local.indices;
    mine = mine.logical_and(local.foreign.logical_not());
  }
  const auto chosen = mine.nonzero().flatten();
  if (chosen.numel() == 0) {
    stack.resize(base);
    stack.emplace_back(works_in_place(context) ? self : self.clone());
    return;
  }
  stack[base + 1] = local_place.index_select(0, chosen);
  stack[base + 2] = stack[base + 2].toTensor().flatten().index_select(0, chosen);
  context.call_stock(stack);
}

std::optional<Rule> put(const OperatorCall& call) {
  if (c10::multiply_integers(call.operand(1).sizes) != c10::multiply_integers(call.operand(2).sizes)) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  for (const std::size_t operand : {1, 2}) builder.letters(operand, Factor::Kind::whole);
  return builder.result(letters).linear({0, 2}).kernel(local_put).by_sizes().build();
}

}  // namespace

void detail::add_flat_scatter_rules() {
  add_rule("aten::masked_scatter", masked_scatter);
  add_rule("aten::put", put);
}

}  // namespace dtensor
