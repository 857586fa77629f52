#include "comm/local_reduction.h"

#include "comm/reduction_kernels.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
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
  const auto& first = parts.front();
  if (first.is_cpu() && has_reduction_kernel(first.scalar_type())) {
    std::vector<const void*> buffers;
    for (const auto& part : parts) buffers.push_back(part.const_data_ptr());
    at::Tensor result = at::empty(first.sizes(), at::TensorOptions(first.scalar_type()));
    reduce_elements(first.scalar_type(), op, buffers, result.numel(), result.mutable_data_ptr());
    return result;
  }
  at::Tensor result = first.clone();
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

void reduce_buffers(at::ScalarType dtype, ReduceOp op, const std::vector<const void*>& parts, std::int64_t count,
                    void* result) {
  if (has_reduction_kernel(dtype)) return reduce_elements(dtype, op, parts, count, result);
  PlainArithmetic plain;
  std::vector<at::Tensor> tensors;
  for (const void* part : parts) {
    tensors.push_back(at::from_blob(const_cast<void*>(part), {count}, at::TensorOptions(dtype)));
  }
  copy_elements(reduce_in_order(tensors, op), at::from_blob(result, {count}, at::TensorOptions(dtype)));
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
