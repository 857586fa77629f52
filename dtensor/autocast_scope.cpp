#include "dtensor/autocast_scope.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {
namespace {
thread_local int depth = 0;
}  // namespace

AutocastScope::AutocastScope(const DeviceMesh& mesh, c10::ScalarType dtype)
    : device_(mesh.layout().device_type()),
      former_enabled_(at::autocast::is_autocast_enabled(device_)),
      former_dtype_(at::autocast::get_autocast_dtype(device_)) {
  at::autocast::increment_nesting();
  // The cache keeps casts of leaves whatever their dtype.
  if (former_enabled_ && former_dtype_ != dtype) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::set_autocast_enabled(device_, true);
  ++depth;
}

AutocastScope::~AutocastScope() {
  --depth;
  const bool other_dtype = at::autocast::get_autocast_dtype(device_) != former_dtype_;
  if (at::autocast::decrement_nesting() == 0 || other_dtype) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, former_enabled_);
  at::autocast::set_autocast_dtype(device_, former_dtype_);
}

bool AutocastScope::active() { return depth > 0; }

bool detail::cast_by_autocast(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) &&
         c10::impl::tls_is_dispatch_key_excluded(
             at::autocast::get_autocast_dispatch_key_from_device_type(device));
}

}  // namespace dtensor
