#include "dtensor/dtensor.h"

#include "dtensor/intercept.h"
#include "dtensor/meta.h"
#include "dtensor/redistribute.h"
#include "dtensor/shared_move.h"
#include "placements/error.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::int64_t as_int(const void* pointer) { return reinterpret_cast<std::int64_t>(pointer); }
const Layout* as_layout(const c10::IValue& value) { return reinterpret_cast<const Layout*>(value.toInt()); }

// The mesh of a tensor in a backward function, by a capsule: it holds the mesh alive.
struct MeshHolder : torch::CustomClassHolder {
  explicit MeshHolder(c10::intrusive_ptr<detail::MeshState> state) : mesh(std::move(state)) {}
  c10::intrusive_ptr<detail::MeshState> mesh;
};
c10::IValue hold(const c10::intrusive_ptr<detail::MeshState>& mesh) {
  return c10::IValue::make_capsule(c10::make_intrusive<MeshHolder>(mesh));
}
c10::intrusive_ptr<detail::MeshState> held(const c10::IValue& value) {
  return c10::static_intrusive_pointer_cast<MeshHolder>(value.toCapsule())->mesh;
}

// In-place writes to one of the two count for both, except for inference tensors, which have no version.
void share_version(const at::Tensor& wrapper, const at::Tensor& local) {
  if (local.is_inference()) {
    detail::meta(wrapper).untracked = true;
    // Moves that gave or took this memory before are not to be shared either.
    if (c10::InferenceMode::is_enabled()) wrapper.unsafeGetTensorImpl()->bump_version();
  } else {
    local.unsafeGetTensorImpl()->set_version_counter(wrapper.unsafeGetTensorImpl()->version_counter());
  }
}

// The local tensor as a plain one that shares memory and version counter with the wrapper, so that autograd notices an
// in-place write through either.
at::Tensor alias_local(const at::Tensor& tensor) {
  auto local = detail::meta(tensor).local.detach();
  share_version(tensor, local);
  return local;
}

struct ToLocalFunction : torch::autograd::Function<ToLocalFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            std::int64_t gradient_layout) {
    const auto& data = detail::meta(tensor);
    context->saved_data["gradient"] = gradient_layout;
    context->saved_data["mesh"] = hold(data.mesh);
    context->saved_data["sizes"] = tensor.sizes().vec();
    return alias_local(tensor);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const DeviceMesh mesh(held(context->saved_data["mesh"]));
    const Layout* layout = as_layout(context->saved_data["gradient"]);
    FromLocalOptions options;
    options.global_sizes = context->saved_data["sizes"].toIntVector();
    return {from_local(gradients[0], mesh, layout->placements(), options), at::Tensor()};
  }
};

struct FromLocalFunction : torch::autograd::Function<FromLocalFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, std::int64_t layout,
                            const c10::IValue& mesh, std::vector<std::int64_t> sizes) {
    context->saved_data["layout"] = layout;
    auto wrapped = detail::wrap(local.detach(), reinterpret_cast<const Layout*>(layout), held(mesh), sizes);
    if (local.is_inference())
      detail::meta(wrapped).untracked = true;
    else
      wrapped.unsafeGetTensorImpl()->set_version_counter(local.unsafeGetTensorImpl()->version_counter());
    return wrapped;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor gradient = gradients[0];
    if (detail::is_dtensor(gradient)) {
      const Layout* layout = as_layout(context->saved_data["layout"])->without_partial();
      gradient = detail::redistribute(gradient, layout);
      gradient = DTensor(gradient).to_local({layout->placements()});
    }
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// This rank's part of `values`, a copy.
at::Tensor part_of(const at::Tensor& values, const Layout* to, const c10::intrusive_ptr<detail::MeshState>& mesh) {
  const at::NoGradGuard no_grad;
  auto local = mesh->member ? detail::move_local(values, to->replicated(), to, values.sizes(), *mesh, false)
                            : at::empty({0}, values.options());
  return detail::wrap(local.contiguous(), to, mesh, values.sizes());
}

// `values`, the same on all ranks, into their parts. They may be another rank's; the gradient, a full tensor, goes to
// this rank's `full` all the same.
struct DistributeFunction : torch::autograd::Function<DistributeFunction> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& /*full*/, const at::Tensor& values, std::int64_t layout,
                            const c10::IValue& mesh_value) {
    return part_of(values, reinterpret_cast<const Layout*>(layout), held(mesh_value));
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    at::Tensor gradient = gradients[0];
    if (detail::is_dtensor(gradient)) gradient = DTensor(gradient).full_tensor();
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_device(const at::Tensor& tensor, const DeviceMesh& mesh, const char* function) {
  if (tensor.device().type() != mesh.layout().device_type())
    throw MeshError(fmt::format("{}: the tensor is on {}, the mesh {} needs tensors on {}", function,
                                tensor.device().str(), mesh.to_string(), mesh.device().str()));
}

void check_not_dtensor(const at::Tensor& tensor, const char* function) {
  if (detail::is_dtensor(tensor))
    throw UnsupportedError(fmt::format("{}: the tensor is a DTensor already; use redistribute()", function));
}

// Sends the values of coordinate `source` along each mesh dimension, one after the other.
at::Tensor agree(const at::Tensor& full, const DeviceMesh& mesh, int source) {
  if (mesh.size() == 1) return full.detach();
  auto values = full.detach().clone(at::MemoryFormat::Contiguous);
  const CollectiveReason reason("distribute");
  for (int mesh_dim = 0; mesh_dim < mesh.ndim(); ++mesh_dim) {
    if (mesh.size(mesh_dim) == 1) continue;
    if (source < 0 || source >= mesh.size(mesh_dim))
      throw MeshError(fmt::format("distribute_tensor: source {} is outside mesh dimension {} of size {}",
                                  source, mesh.names()[static_cast<std::size_t>(mesh_dim)],
                                  mesh.size(mesh_dim)));
    mesh.group(mesh_dim).broadcast(values, source).wait();
  }
  return values;
}

// Global sizes from every rank's local sizes: one small exchange over the mesh, checked alike on all ranks.
std::vector<std::int64_t> exchange_sizes(const at::Tensor& local, const DeviceMesh& mesh,
                                         const Layout* layout) {
  const auto ndim = local.dim();
  const auto options = at::TensorOptions().dtype(at::kLong).device(mesh.device());
  const auto mine = at::tensor(local.sizes(), at::kLong).to(mesh.device());
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < mesh.size(); ++i) all.push_back(at::empty({ndim}, options));
  const CollectiveReason reason("sizes");
  mesh.whole_group().all_gather(all, mine).wait();
  std::vector<std::vector<std::int64_t>> sizes;
  for (const auto& tensor : all) {
    const auto host = tensor.to(at::kCPU).contiguous();
    sizes.emplace_back(host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + ndim);
  }
  // A dimension's global size: the pieces along the mesh dimensions that cut it, from the ranks that share all other
  // coordinates with the first.
  std::vector<std::int64_t> global = sizes[0];
  for (std::int64_t dim = 0; dim < ndim; ++dim) {
    const auto cutting = layout->mesh_dims_cutting(dim);
    if (cutting.empty()) continue;
    std::int64_t total = 0;
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      const auto coordinate =
          *mesh.layout().coordinate_of(mesh.layout().ranks()[static_cast<std::size_t>(position)]);
      bool counted = true;
      for (int mesh_dim = 0; mesh_dim < mesh.ndim(); ++mesh_dim)
        if (std::find(cutting.begin(), cutting.end(), mesh_dim) == cutting.end() &&
            coordinate[static_cast<std::size_t>(mesh_dim)] != 0)
          counted = false;
      if (counted) total += sizes[static_cast<std::size_t>(position)][static_cast<std::size_t>(dim)];
    }
    global[static_cast<std::size_t>(dim)] = total;
  }
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const auto rank = mesh.layout().ranks()[static_cast<std::size_t>(position)];
    const auto expected = shard_math::local_sizes(*layout, global, *mesh.layout().coordinate_of(rank));
    if (expected != sizes[static_cast<std::size_t>(position)])
      throw PlacementError(
          fmt::format("from_local: rank {} holds [{}] of a tensor placed {}, but the other ranks' parts make "
                      "its global sizes [{}], of "
                      "which it should hold [{}]. Shards are pieces of ceil(n / ranks), the last ones "
                      "smaller or empty; use "
                      "distribute_tensor to cut a full tensor so.",
                      rank, fmt::join(sizes[static_cast<std::size_t>(position)], ", "), layout->to_string(),
                      fmt::join(global, ", "), fmt::join(expected, ", ")));
  }
  return global;
}

}  // namespace

namespace detail {
const Layout* layout_for(const DeviceMesh& mesh, const Placements& placements, std::int64_t ndim) {
  if (static_cast<int>(placements.size()) != mesh.ndim())
    throw PlacementError(fmt::format("{} placements {} for the mesh {}, which has {} dimensions",
                                     placements.size(), to_string(placements), mesh.to_string(),
                                     mesh.ndim()));
  Placements normal;
  for (const auto& placement : placements) normal.push_back(placement.normalized(ndim));
  return Layout::of(&mesh.layout(), normal);
}
}  // namespace detail

bool is_dtensor(const at::Tensor& tensor) { return detail::is_dtensor(tensor); }

DTensor::DTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  if (!detail::is_dtensor(*this))
    throw UnsupportedError(
        "not a DTensor: make one with distribute_tensor or from_local, or ask is_dtensor first");
}
DTensor as_dtensor(const at::Tensor& tensor) { return DTensor(tensor); }
std::optional<DTensor> try_dtensor(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return std::nullopt;
  return DTensor(tensor);
}

DeviceMesh DTensor::mesh() const { return DeviceMesh(detail::meta(*this).mesh); }
Placements DTensor::placements() const { return detail::meta(*this).layout->placements(); }
const Layout& DTensor::layout() const { return *detail::meta(*this).layout; }

at::Tensor DTensor::to_local(LocalOptions options) const {
  const auto& data = detail::meta(*this);
  detail::check_readable(*this, "to_local");
  if (!at::GradMode::is_enabled() || !requires_grad()) return alias_local(*this);
  const Layout* gradient = data.layout->without_partial();
  if (options.grad_placements) {
    gradient = detail::layout_for(mesh(), *options.grad_placements, dim());
  } else {
    for (int mesh_dim = 0; mesh_dim < data.layout->mesh_ndim(); ++mesh_dim)
      if (data.layout->placement(mesh_dim).is_replicate() && data.layout->mesh().size(mesh_dim) > 1)
        throw UnsupportedError(fmt::format(
            "to_local: the tensor is Replicate on mesh dimension {} and requires grad, so the placement of "
            "its gradient "
            "must be stated: pass grad_placements with Replicate there if every rank computes the same "
            "gradient, Partial() "
            "if each computes a part of it. Placed {}.",
            data.layout->mesh().names()[static_cast<std::size_t>(mesh_dim)], data.layout->to_string()));
  }
  // Function::apply takes the static type at::Tensor only for a variable (see dtensor/function.h).
  return ToLocalFunction::apply(static_cast<const at::Tensor&>(*this), as_int(gradient));
}

at::Tensor DTensor::full_tensor() const {
  const auto& data = detail::meta(*this);
  if (!data.mesh->member)
    throw MeshError(
        fmt::format("full_tensor: rank {} is outside the mesh {} and holds no values of its tensors",
                    data.mesh->world->rank(), data.layout->mesh().to_string()));
  detail::check_readable(*this, "full_tensor");
  const CollectiveReason reason("full_tensor");
  const Layout* whole = data.layout->replicated();
  const DTensor replicated(detail::redistribute(*this, whole));
  auto full = replicated.to_local({whole->placements()});
  // A replicated tensor's local part is the value: hand out a copy, so that writing to it cannot part the replicas.
  return data.layout == whole ? full.clone() : full;
}

DTensor DTensor::redistribute(Placements to, RedistributeOptions) const {
  detail::check_readable(*this, "redistribute");
  const CollectiveReason reason("redistribute");
  return DTensor(detail::redistribute(*this, detail::layout_for(mesh(), to, dim())));
}

DTensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh, Placements placements,
                          DistributeOptions options) {
  detail::ensure_intercepted();
  check_not_dtensor(full, "distribute_tensor");
  const Layout* layout = detail::layout_for(mesh, placements, full.dim());
  check_device(full, mesh, "distribute_tensor");
  const at::Tensor values = options.source && mesh.is_member() ? agree(full, mesh, *options.source) : full.detach();
  if (!at::GradMode::is_enabled() || !full.requires_grad()) return DTensor(part_of(values, layout, mesh.state()));
  return DTensor(DistributeFunction::apply(full, values, as_int(layout), hold(mesh.state())));
}

DTensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                   FromLocalOptions options) {
  detail::ensure_intercepted();
  check_not_dtensor(local, "from_local");
  const Layout* layout = detail::layout_for(mesh, placements, local.dim());
  check_device(local, mesh, "from_local");
  if (!mesh.is_member())
    return DTensor(detail::wrap(at::empty({0}, local.options()), layout, mesh.state(), local.sizes()));
  std::vector<std::int64_t> sizes = local.sizes().vec();
  if (options.global_sizes) {
    sizes = *options.global_sizes;
    detail::check_local(local, *layout, *mesh.state(), sizes);
  } else if (layout->is_sharded() && options.even) {
    for (int mesh_dim = 0; mesh_dim < layout->mesh_ndim(); ++mesh_dim)
      if (layout->placement(mesh_dim).is_sharded())
        sizes[static_cast<std::size_t>(layout->placement(mesh_dim).dim())] *= mesh.size(mesh_dim);
  } else if (layout->is_sharded()) {
    sizes = exchange_sizes(local, mesh, layout);
  }
  // One memory order on all ranks: row-major.
  return DTensor(FromLocalFunction::apply(local.contiguous(), as_int(layout), hold(mesh.state()), sizes));
}

DTensor distribute_batch(const at::Tensor& part, const DeviceMesh& mesh, const std::string& dp) {
  Placements placements(static_cast<std::size_t>(mesh.ndim()));
  placements[static_cast<std::size_t>(mesh.layout().dim(dp))] = Shard(0);
  return from_local(part, mesh, placements);
}

at::Tensor constrain(const at::Tensor& tensor, Placements placements) {
  const DTensor distributed(tensor);
  const Layout* to = detail::layout_for(distributed.mesh(), placements, tensor.dim());
  if (to == &distributed.layout()) return tensor;
  std::vector<std::int64_t> mesh_dims;
  for (int dim = 0; dim < to->mesh_ndim(); ++dim)
    if (to->placement(dim) != distributed.layout().placement(dim)) mesh_dims.push_back(dim);
  const CollectiveReason reason("constrain");
  return detail::shared_move(tensor, to, mesh_dims);
}

}  // namespace dtensor
