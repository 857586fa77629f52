#include "ops/kernel_context.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>

namespace dtensor {

void KernelContext::call_stock(std::vector<c10::IValue>& stack) const {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
}

at::Tensor KernelContext::gather_pieces(const at::Tensor& tensor, std::size_t operand, std::int64_t dim) const {
  const Layout* placed = layout(operand);
  at::Tensor stacked = tensor.unsqueeze(0).contiguous();
  const auto cuts = placed->mesh_dims_cutting(dim);
  for (auto mesh_dim = cuts.rbegin(); mesh_dim != cuts.rend(); ++mesh_dim) {  // innermost first
    const auto ranks = placed->mesh().size(*mesh_dim);
    if (ranks == 1) continue;
    std::vector<at::Tensor> all;
    for (std::int64_t i = 0; i < ranks; ++i) all.push_back(at::empty_like(stacked));
    mesh.group(*mesh_dim).all_gather(all, stacked).wait();
    stacked = at::cat(all);
  }
  return stacked;
}

std::int64_t KernelContext::piece(std::size_t operand, std::int64_t dim) const {
  std::int64_t index = 0;
  for (const int mesh_dim : layout(operand)->mesh_dims_cutting(dim))
    index = index * mesh.layout->size(mesh_dim) + mesh.coordinate[static_cast<std::size_t>(mesh_dim)];
  return index;
}

void KernelContext::all_reduce(at::Tensor& tensor, ReduceOp reduce_op, std::size_t operand,
                               std::span<const std::int64_t> dims) const {
  const Layout* placed = layout(operand);
  tensor = tensor.contiguous();
  for (int mesh_dim = 0; mesh_dim < placed->mesh_ndim(); ++mesh_dim) {
    const Placement& placement = placed->placement(mesh_dim);
    if (!placement.is_sharded() || placed->mesh().size(mesh_dim) == 1) continue;
    for (auto dim : dims)
      if (placement.dim() == dim) mesh.group(mesh_dim).all_reduce(tensor, reduce_op).wait();
  }
}

}  // namespace dtensor
