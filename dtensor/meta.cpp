#include "dtensor/meta.h"

#include "placements/error.h"
#include "placements/shard_math.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace dtensor::detail {

at::Tensor wrap(at::Tensor local, const Layout* layout, c10::intrusive_ptr<MeshState> mesh,
                c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  TORCH_INTERNAL_ASSERT(!is_dtensor(local), "a DTensor cannot be the local tensor of another");
  const auto backend = local.key_set().highestBackendKey();
  const c10::DispatchKeySet keys =
      c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::DispatchKeySet(backend) |
      c10::DispatchKeySet(c10::BackendComponent::PrivateUse2Bit) |
      c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse2Bit) |
      c10::getAutocastRelatedKeySetFromBackend(backend);
  c10::intrusive_ptr<c10::TensorImpl> impl;
  {
    // Note [Inference mode]: a view of a normal tensor must stay normal, and inference tensors have no version, so a
    // shared move could be stale. Every wrapper is therefore a normal tensor, with a version counter.
    std::optional<c10::InferenceMode> normal;
    if (c10::InferenceMode::is_enabled()) normal.emplace(false);
    impl = c10::make_intrusive<c10::TensorImpl>(keys, local.dtype(), local.device());
  }
  impl->set_sizes_and_strides(sizes, strides);
  // Access to the storage must throw: else torch::save crashes natively and is_alias_of of two unrelated wrappers is
  // true. The text is short enough to need no allocation.
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_("use to_local()");
  if (local.is_conj()) impl->_set_conj(true);
  if (local.is_neg()) impl->_set_neg(true);
  auto data = c10::make_intrusive<Meta>();
  data->local = std::move(local);
  data->layout = layout;
  data->mesh = std::move(mesh);
  impl->set_backend_meta(std::move(data));
  return at::Tensor(std::move(impl));
}

at::Tensor wrap(at::Tensor local, const Layout* layout, c10::intrusive_ptr<MeshState> mesh,
                c10::IntArrayRef sizes) {
  return wrap(std::move(local), layout, std::move(mesh), sizes, contiguous_strides(sizes));
}

at::Tensor rewrap(const at::Tensor& tensor) {
  const Meta& from = meta(tensor);
  auto copy = wrap(from.local, from.layout, from.mesh, tensor.sizes(), tensor.strides());
  meta(copy).wishes = from.wishes;
  meta(copy).gathered = from.gathered;
  meta(copy).base_version = from.base_version;
  meta(copy).untracked = from.untracked;
  copy.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return copy;
}

std::vector<std::int64_t> contiguous_strides(c10::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

std::vector<std::int64_t> strides_in_order(c10::IntArrayRef sizes, c10::ArrayRef<int> order) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<std::size_t>(order[i]);
    strides[dim] = step;
    step *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

std::vector<int> memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  // Dimensions of size 1 keep their place: only the larger ones are sorted among themselves.
  std::vector<int> order(sizes.size()), larger;
  std::iota(order.begin(), order.end(), 0);
  for (int dim : order)
    if (sizes[static_cast<std::size_t>(dim)] != 1) larger.push_back(dim);
  auto sorted = larger;
  std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) {
    return strides[static_cast<std::size_t>(a)] > strides[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < larger.size(); ++i) order[static_cast<std::size_t>(larger[i])] = sorted[i];
  return order;
}

void check_local(const at::Tensor& local, const Layout& layout, const MeshState& mesh,
                 c10::IntArrayRef sizes) {
  if (!mesh.member) return;
  const auto expected = shard_math::local_sizes(layout, sizes, mesh.coordinate);
  if (local.sizes() == c10::IntArrayRef(expected)) return;
  throw PlacementError(fmt::format(
      "the local tensor has sizes [{}], but rank {} of a tensor with global sizes [{}] placed {} holds [{}]",
      fmt::join(local.sizes(), ", "), mesh.world->rank(), fmt::join(sizes, ", "), layout.to_string(),
      fmt::join(expected, ", ")));
}

}  // namespace dtensor::detail
