#include "parallelize/clip_grad_norm.h"

#include "dtensor/meta.h"
#include "dtensor/redistribute.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>

namespace dtensor {
namespace {

// Gradients that are reduced over the same groups.
struct Share {
  const Layout* layout = nullptr;
  c10::intrusive_ptr<detail::MeshState> mesh;
  std::vector<at::Tensor> locals;
};

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, bool maximum) {
  if (!a.defined()) return b;
  return maximum ? at::maximum(a, b) : a + b;
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (!(norm_type > 0)) throw PlacementError("clip_grad_norm_: the norm type must be above 0");
  const at::NoGradGuard no_grad;
  const CollectiveReason reason("clip_grad_norm_");
  const bool maximum = std::isinf(norm_type);
  std::vector<at::Tensor> gradients;
  std::map<std::pair<const Layout*, detail::MeshState*>, Share> shares;
  std::vector<std::pair<const Layout*, detail::MeshState*>> order;  // of first use: the same on all ranks
  for (const auto& parameter : parameters) {
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    gradients.push_back(gradient);
    std::pair<const Layout*, detail::MeshState*> key{nullptr, nullptr};
    at::Tensor local = gradient;
    if (detail::is_dtensor(gradient)) {
      const auto whole = detail::move(gradient, detail::meta(gradient).layout->without_partial());
      key = {detail::meta(whole).layout, detail::meta(whole).mesh.get()};
      local = detail::meta(whole).local;
      auto& share = shares[key];
      share.layout = key.first;
      share.mesh = detail::meta(whole).mesh;
    }
    if (shares[key].locals.empty()) order.push_back(key);
    shares[key].locals.push_back(local);
  }
  if (gradients.empty()) return at::zeros({});
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor total;
  for (const auto& key : order) {
    const auto& share = shares[key];
    at::Tensor sum;
    for (const auto& local : share.locals) {
      if (local.numel() == 0 && maximum) continue;
      const auto magnitude = local.abs();
      sum = combine(sum, maximum ? magnitude.max() : norm_type == 2 ? (magnitude * magnitude).sum() : magnitude.pow(norm_type).sum(),
                    maximum);
    }
    if (!sum.defined()) sum = at::zeros({}, share.locals.front().options());
    if (share.layout)
      for (int dim = 0; dim < share.layout->mesh_ndim(); ++dim)
        if (share.layout->placement(dim).is_sharded() && share.layout->mesh().size(dim) > 1)
          share.mesh->group(dim).all_reduce(sum, maximum ? ReduceOp::max : ReduceOp::sum).wait();
    total = combine(total, sum, maximum);
  }
  const at::Tensor norm = maximum ? total : norm_type == 2 ? total.sqrt() : total.pow(1.0 / norm_type);
  const at::Tensor coefficient = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
  // Scaling is linear: pending gradients stay pending.
  for (auto& gradient : gradients)
    if (detail::is_dtensor(gradient))
      detail::meta(gradient).local.mul_(coefficient.to(gradient.scalar_type()));
    else
      gradient.mul_(coefficient.to(gradient.scalar_type()));
  for (auto& gradient : gradients) gradient.unsafeGetTensorImpl()->bump_version();
  return norm;
}

}  // namespace dtensor
