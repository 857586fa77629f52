#include "ops/local_indices.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace dtensor {

LocalIndices local_indices(const KernelContext& context, std::size_t operand, std::int64_t dim,
                           const at::Tensor& indices, bool from_end) {
  const auto size = context.operands[operand].sizes[static_cast<std::size_t>(dim)];
  if (indices.numel() > 0 && indices.device().is_cpu())
    TORCH_CHECK_INDEX(indices.min().item<std::int64_t>() >= (from_end ? -size : 0) &&
                          indices.max().item<std::int64_t>() < size,
                      "index out of range: dimension ", dim, " has size ", size);
  const auto counted = from_end ? at::where(indices.lt(0), indices + size, indices) : indices;
  LocalIndices local{at::zeros_like(indices), at::ones_like(indices, indices.options().dtype(at::kBool))};
  std::int64_t row = 0;
  for (const auto& run : context.intervals(operand, dim)) {
    const auto mine = counted.ge(run.offset).logical_and(counted.lt(run.offset + run.size));
    local.indices = at::where(mine, counted - (run.offset - row), local.indices);
    local.foreign = local.foreign.logical_and(mine.logical_not());
    row += run.size;
  }
  return local;
}

bool works_in_place(const KernelContext& context) {
  const auto* alias = context.op.schema().arguments()[0].alias_info();
  return alias && alias->isWrite();
}

at::Tensor write_rows(const KernelContext& context, const at::Tensor& self, std::int64_t dim,
                      const at::Tensor& positions, const at::Tensor& source) {
  const auto result = works_in_place(context) ? self : self.clone(at::MemoryFormat::Contiguous);
  const auto local = local_indices(context, 0, dim, positions);
  const auto mine = local.foreign.logical_not().nonzero().flatten();
  if (mine.numel() > 0 && self.numel() > 0)
    result.index_copy_(dim, local.indices.index_select(0, mine), source.index_select(dim, mine));
  return result;
}

}  // namespace dtensor
