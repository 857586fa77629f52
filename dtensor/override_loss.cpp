// cross_entropy_loss decomposes into log_softmax and nll_loss, which are right for cut classes but reduce four times
// and keep two more tensors of the logits' size. Where classes are cut it is one node (dtensor/cross_entropy.h); with
// label smoothing too, whose stock formula reads the values of the targets and would gather them.
#include "dtensor/cross_entropy.h"
#include "dtensor/meta.h"
#include "dtensor/override.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace dtensor::detail::override_ {
namespace {

bool cuts_classes(const Layout& layout, std::int64_t class_dim) {
  for (const int mesh_dim : layout.mesh_dims_cutting(class_dim))
    if (layout.mesh().size(mesh_dim) > 1) return true;
  return false;
}

// A class per row: the logits' sizes without the classes.
bool is_target_of_rows(const at::Tensor& target, const at::Tensor& logits, std::int64_t class_dim) {
  if (!at::isIntegralType(target.scalar_type(), false) || target.dim() != logits.dim() - 1) return false;
  for (std::int64_t dim = 0; dim < target.dim(); ++dim)
    if (target.size(dim) != logits.size(dim < class_dim ? dim : dim + 1)) return false;
  return true;
}

}  // namespace

at::Tensor cross_entropy_loss(const at::Tensor& self, const at::Tensor& target,
                              const std::optional<at::Tensor>& weight, std::int64_t reduction,
                              c10::SymInt ignore_index, double label_smoothing) {
  check_loss_parallel(self);
  const std::int64_t class_dim = self.dim() == 1 ? 0 : 1;
  const auto w = weight.value_or(at::Tensor());
  // What the stock operator refuses, and targets that are probabilities, go its way.
  const bool fused = is_dtensor(self) && self.dim() > 0 && at::isFloatingType(self.scalar_type()) &&
                     (cuts_classes(*meta(self).layout, class_dim) || label_smoothing > 0) &&
                     is_target_of_rows(target, self, class_dim) && target.scalar_type() == at::kLong &&
                     self.size(class_dim) > 0 && label_smoothing >= 0 && label_smoothing <= 1 &&
                     (!w.defined() || (w.dim() == 1 && w.size(0) == self.size(class_dim) &&
                                       w.scalar_type() == self.scalar_type() && !w.requires_grad()));
  if (!fused)
    return call_composite("aten::cross_entropy_loss",
                          {self, target, weight.has_value() ? c10::IValue(w) : c10::IValue(), reduction,
                           ignore_index.expect_int(), label_smoothing});
  const auto loss = cross_entropy(
      self, target, w,
      {class_dim, self.size(class_dim), ignore_index.expect_int(), reduction, label_smoothing, 0});
  // Under autocast the stock operators compute in float.
  return at::autocast::is_autocast_enabled(self.device().type()) ? loss : loss.to(self.scalar_type());
}

}  // namespace dtensor::detail::override_
