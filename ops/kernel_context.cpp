#include "ops/kernel_context.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/autocast_mode.h>

namespace dtensor {

void KernelContext::call_stock(std::vector<c10::IValue>& stack) const {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
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
