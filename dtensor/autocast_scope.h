// AutocastScope: LibTorch's autocast on a mesh, with moves that the casts share.
#pragma once

#include "comm/device_mesh.h"

#include <c10/core/ScalarType.h>

namespace dtensor {

// Turns LibTorch's autocast on for the mesh's device type while it lives, and restores what was. Autocast casts a tensor
// once per consumer; inside the scope the consumers of these copies share one move in the lower precision (q, k and v
// read one gathered tensor), as they do without autocast. Under raw at::autocast values are right, but each copy moves
// alone. Scopes may nest.
class AutocastScope {
 public:
  explicit AutocastScope(const DeviceMesh& mesh, c10::ScalarType dtype = c10::ScalarType::BFloat16);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

  // Whether the calling thread is inside one.
  static bool active();

 private:
  c10::DeviceType device_;
  bool former_enabled_;
  c10::ScalarType former_dtype_;
};

namespace detail {
// Whether a cast that runs now was asked for by autocast, which excludes its own key around its casts.
bool cast_by_autocast(c10::DeviceType device);
}  // namespace detail

}  // namespace dtensor
