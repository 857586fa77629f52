#include "comm/local_reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

namespace dtensor::detail {

namespace {

// The thread that computes for all may be in autocast or inference mode or record a graph; none of that may
// show.
class PlainArithmetic {
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace

at::Tensor reduce_in_order(const std::vector<at::Tensor>& parts, ReduceOp op) {
  PlainArithmetic plain;
  at::Tensor result = parts.front().clone();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result.add_(parts[i]);
        break;
      case ReduceOp::product:
        result.mul_(parts[i]);
        break;
      case ReduceOp::max:
        at::maximum_out(result, result, parts[i]);
        break;
      case ReduceOp::min:
        at::minimum_out(result, result, parts[i]);
        break;
    }
  }
  if (op == ReduceOp::avg) divide_by_count(result, static_cast<std::int64_t>(parts.size()));
  return result;
}

void divide_by_count(at::Tensor& sum, std::int64_t count) {
  PlainArithmetic plain;
  if (c10::isIntegralType(sum.scalar_type(), /*includeBool=*/true)) {
    sum.div_(count, "trunc");
  } else {
    sum.div_(count);
  }
}

void copy_elements(const at::Tensor& from, const at::Tensor& to) {
  if (from.numel() == 0 || from.is_alias_of(to)) {
    if (from.numel() == 0 || from.const_data_ptr() == to.const_data_ptr()) return;
  }
  if (from.is_cpu() && to.is_cpu()) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  PlainArithmetic plain;
  to.view(-1).copy_(from.view(-1), /*non_blocking=*/true);
}

}  // namespace dtensor::detail
