// zeros, ones, empty, full: every rank makes its part alone.
#include "dtensor/dtensor.h"
#include "dtensor/intercept.h"
#include "dtensor/meta.h"
#include "placements/error.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

namespace dtensor {
namespace {

template <typename Make>
DTensor make(c10::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements, at::TensorOptions options,
             Make&& local_maker) {
  detail::ensure_intercepted();
  if (options.has_device() && options.device().type() != mesh.layout().device_type())
    throw MeshError(fmt::format("a factory was asked for a tensor on {}, the mesh is {}", options.device().str(),
                                mesh.to_string()));
  const Layout* layout = detail::layout_for(mesh, placements, static_cast<std::int64_t>(sizes.size()));
  const bool requires_grad = options.requires_grad();
  options = options.device(mesh.device()).requires_grad(false);
  const at::NoGradGuard no_grad;
  const auto local = mesh.is_member()
                         ? local_maker(c10::IntArrayRef(shard_math::local_sizes(*layout, sizes, mesh.coordinate())), options,
                                       *layout)
                         : at::empty({0}, options);
  auto result = detail::wrap(local, layout, mesh.state(), sizes);
  if (requires_grad) result.set_requires_grad(true);
  return DTensor(result);
}

}  // namespace

DTensor zeros(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return make(sizes, mesh, placements, options,
              [](c10::IntArrayRef local, const at::TensorOptions& o, const Layout&) { return at::zeros(local, o); });
}
DTensor empty(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return make(sizes, mesh, placements, options,
              [](c10::IntArrayRef local, const at::TensorOptions& o, const Layout&) { return at::empty(local, o); });
}
DTensor ones(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return full(sizes, 1, mesh, std::move(placements), options.has_dtype() ? options : options.dtype(at::kFloat));
}
DTensor full(c10::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh, Placements placements,
             at::TensorOptions options) {
  // fill_ knows that the parts of a pending tensor must reduce to the value.
  auto result = make(sizes, mesh, placements, options, [&](c10::IntArrayRef local, const at::TensorOptions& o, const Layout&) {
    return at::full(local, value, o);
  });
  if (!result.layout().has_partial() || !mesh.is_member()) return result;
  const at::NoGradGuard no_grad;
  result.fill_(value);
  return result;
}

}  // namespace dtensor
