// What makes an at::Tensor a DTensor: an ordinary TensorImpl whose key set also carries the PrivateUse2 backend bit, with
// a BackendMeta that holds layout, mesh and local tensor. Private to this library.
#pragma once

#include "comm/device_mesh.h"
#include "dtensor/wish.h"
#include "placements/layout.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>

namespace dtensor::detail {

struct MoveMemo;

// Note [The meta outlives the tensor]
// A BackendMeta dies with the last weak reference to its tensor (retain_grad and autocast's cache take one), so nothing
// in it may lead strongly to a variable with a graph: `local` and the moves in `memo` never require grad.
struct Meta final : c10::BackendMeta {
  at::Tensor local;
  const Layout* layout = nullptr;
  c10::intrusive_ptr<MeshState> mesh;
  Wishes wishes;
  // Moves of this tensor that its consumers share; not copied with the meta.
  std::shared_ptr<MoveMemo> memo;
  // A copy that autocast made inside AutocastScope: the memo of what it was cast from; not copied.
  std::weak_ptr<MoveMemo> cast_of;
  // A view that had to move data: it does not alias its base. Reading it after the base changed, or writing to it, throws.
  bool gathered = false;
  std::int64_t base_version = 0;
  // The local tensor was handed out, or came, as an inference tensor: writes to it are not counted, so moves of this one
  // are not remembered.
  bool untracked = false;
  // Whether the hook that brings this leaf's gradient to a DTensor is installed; not copied.
  bool leaf_hook = false;

  // LibTorch copies the meta with the tensor's metadata (set_data, detach): two tensors never share one.
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>&) const override {
    auto copy = c10::make_intrusive<Meta>();
    copy->local = local;
    copy->layout = layout;
    copy->mesh = mesh;
    copy->wishes = wishes;
    copy->gathered = gathered;
    copy->base_version = base_version;
    copy->untracked = untracked;
    return copy;
  }
};

inline bool is_dtensor(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::PrivateUse2Bit);
}
inline bool is_dtensor(const at::TensorBase& tensor) {
  return tensor.defined() && is_dtensor(tensor.unsafeGetTensorImpl());
}
// Requires is_dtensor.
inline Meta& meta(const at::TensorBase& tensor) {
  return *static_cast<Meta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// The only factory of DTensors. `local` is shared, not copied; sizes and strides are global.
at::Tensor wrap(at::Tensor local, const Layout* layout, c10::intrusive_ptr<MeshState> mesh,
                c10::IntArrayRef sizes, c10::IntArrayRef strides);
// With contiguous global strides.
at::Tensor wrap(at::Tensor local, const Layout* layout, c10::intrusive_ptr<MeshState> mesh,
                c10::IntArrayRef sizes);
// Another tensor over the same local tensor and version counter, without graph.
at::Tensor rewrap(const at::Tensor& tensor);

std::vector<std::int64_t> contiguous_strides(c10::IntArrayRef sizes);
// Dense strides in a memory order (dimensions from outermost to innermost).
std::vector<std::int64_t> strides_in_order(c10::IntArrayRef sizes, c10::ArrayRef<int> order);
// Dimensions from outermost to innermost by these strides; size-1 dimensions stay where they are.
std::vector<int> memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Whether a wrapped layout and a rank's local tensor fit each other: the local sizes are those of shard_math.
void check_local(const at::Tensor& local, const Layout& layout, const MeshState& mesh,
                 c10::IntArrayRef sizes);

}  // namespace dtensor::detail
