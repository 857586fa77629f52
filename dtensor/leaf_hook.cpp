#include "dtensor/leaf_hook.h"

#include "dtensor/meta.h"
#include "dtensor/redistribute.h"

#include <ATen/core/grad_mode.h>

namespace dtensor::detail {

void install_leaf_hook(const at::Tensor& tensor) {
  Meta& data = meta(tensor);
  if (data.leaf_hook || !at::GradMode::is_enabled() || !tensor.requires_grad() || !tensor.is_leaf()) return;
  data.leaf_hook = true;
  // The hook lives in the leaf, so a plain pointer to it is safe; set_data may have made it plain or placed it anew.
  c10::TensorImpl* leaf = tensor.unsafeGetTensorImpl();
  tensor.register_hook([leaf](const at::Tensor& gradient) -> at::Tensor {
    if (!is_dtensor(leaf) || !gradient.defined()) return gradient;
    const auto& placed = *static_cast<Meta*>(leaf->get_backend_meta());
    at::Tensor result = gradient;
    if (!is_dtensor(result)) {
      const Layout* replicated = placed.layout->replicated();
      result = wrap(gradient.detach(), replicated, placed.mesh, gradient.sizes(), gradient.strides());
    }
    const Layout* layout = meta(result).layout;
    if (layout->mesh_pointer() != placed.layout->mesh_pointer()) return result;
    auto placements = layout->placements();
    for (std::size_t dim = 0; dim < placements.size(); ++dim) {
      const Placement& of_leaf = placed.layout->placement(static_cast<int>(dim));
      if (placements[dim].is_replicate() && of_leaf.is_sharded()) placements[dim] = of_leaf;
      // An interleaved cut suits no other cut of its dimension that the leaf has; it gives way to the leaf's.
      if (placements[dim].is_interleaved() && placements[dim] != of_leaf)
        placements[dim] = of_leaf.is_sharded() ? of_leaf : Placement();
    }
    return redistribute(result, Layout::of(layout->mesh_pointer(), placements, placed.layout->cut_order()));
  });
}

}  // namespace dtensor::detail
