#include "parallelize/gradient_synchronization.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "dtensor/redistribute.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>

#include <map>

namespace dtensor {
namespace detail {
namespace {

class Synchronizer;

// All synchronizers of a World by module, so that NoGradientSync finds them.
struct Synchronizers {
  std::map<const void*, std::shared_ptr<Synchronizer>> by_module;
};

class Synchronizer : public std::enable_shared_from_this<Synchronizer> {
 public:
  Synchronizer(const std::vector<at::Tensor>& parameters, const DeviceMesh& mesh,
               const std::optional<DataParallel>& data_parallel)
      : mesh_(mesh.state()) {
    if (data_parallel) {
      dp_ = mesh.layout().find_dim(data_parallel->dim);
      if (!data_parallel->reduce_dtype.empty())
        reduce_dtype_ = data_parallel->reduce_dtype == "float64"   ? at::kDouble
                        : data_parallel->reduce_dtype == "float32" ? at::kFloat
                        : data_parallel->reduce_dtype == "bfloat16" ? at::kBFloat16
                                                                    : at::kHalf;
    }
    const double limit = (data_parallel ? data_parallel->bucket_mb : 25) * 1024 * 1024;
    // Gradients become ready from the last parameter to the first.
    double filled = 0;
    for (std::size_t i = parameters.size(); i-- > 0;) {
      const auto& parameter = parameters[i];
      if (!parameter.requires_grad()) continue;
      const double bytes = static_cast<double>(meta(parameter).local.nbytes());
      if (buckets_.empty() || filled + bytes > limit || buckets_.back().front().scalar_type() != parameter.scalar_type()) {
        buckets_.emplace_back();
        filled = 0;
      }
      buckets_.back().push_back(parameter);
      filled += bytes;
    }
  }

  void install() {
    for (auto& bucket : buckets_)
      for (auto& parameter : bucket) {
        std::weak_ptr<Synchronizer> weak = shared_from_this();
        torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<AfterAccumulation>(weak));
        c10::TensorImpl* leaf = parameter.unsafeGetTensorImpl();
        parameter.register_hook([weak, leaf](const at::Tensor& gradient) {
          if (auto self = weak.lock()) self->before_accumulation(leaf, gradient);
          return gradient;
        });
      }
  }

  int paused = 0;  // NoGradientSync scopes

 private:
  struct AfterAccumulation : torch::autograd::PostAccumulateGradHook {
    explicit AfterAccumulation(std::weak_ptr<Synchronizer> synchronizer) : weak(std::move(synchronizer)) {}
    void operator()(const torch::autograd::Variable&) override {
      if (auto self = weak.lock()) self->after_accumulation();
    }
    std::weak_ptr<Synchronizer> weak;
  };

  // A gradient that is reduced already meets a pending one: it becomes pending first, which is free, so that the sum is
  // reduced once.
  void before_accumulation(c10::TensorImpl* leaf, const at::Tensor& gradient) {
    const at::Tensor parameter(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(leaf));
    at::Tensor& held = parameter.mutable_grad();
    if (!is_dtensor(held) || !is_dtensor(gradient)) return;
    const Layout *now = meta(held).layout, *incoming = meta(gradient).layout;
    if (now->mesh_pointer() != incoming->mesh_pointer()) return;
    auto placements = now->placements();
    for (int dim = 0; dim < now->mesh_ndim(); ++dim)
      if (now->placement(dim).is_replicate() && incoming->placement(dim).is_partial())
        placements[static_cast<std::size_t>(dim)] = incoming->placement(dim);
    const Layout* pending = Layout::of(now->mesh_pointer(), placements, now->cut_order());
    if (pending == now) return;
    const at::NoGradGuard no_grad;
    held = move(held, pending);
  }

  void after_accumulation() {
    if (paused > 0 || queued_) return;
    queued_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] {
      self->queued_ = false;
      self->synchronize();
    });
  }

  void synchronize() {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const CollectiveReason reason("gradient");
    for (auto& bucket : buckets_) {
      for (int dim = 0; dim < mesh_->layout->ndim(); ++dim)
        if (mesh_->layout->size(dim) > 1 && (!dp_ || dim != *dp_)) reduce_pending(bucket, dim);
      if (dp_ && mesh_->layout->size(*dp_) > 1) reduce_all(bucket, *dp_);
      for (auto& parameter : bucket) settle(parameter);
    }
  }

  // Gradients of a bucket that are pending on one mesh dimension, in one all-reduce per reduction.
  void reduce_pending(std::vector<at::Tensor>& bucket, int mesh_dim) {
    std::vector<at::Tensor*> pending;
    std::vector<at::Tensor> locals;
    for (auto& parameter : bucket) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!is_dtensor(gradient)) continue;
      const auto& placement = meta(gradient).layout->placement(mesh_dim);
      if (!placement.is_partial() || placement.reduce_op() != ReduceOp::sum) continue;
      pending.push_back(&gradient);
      locals.push_back(meta(gradient).local);
    }
    if (pending.empty()) return;
    auto flat = flatten(locals);
    mesh_->group(mesh_dim).all_reduce(flat, ReduceOp::sum).wait();
    unflatten(flat, pending, mesh_dim);
  }

  // Every parameter of a bucket takes part. A gradient that is whole on this dimension counts on coordinate 0 only.
  void reduce_all(std::vector<at::Tensor>& bucket, int mesh_dim) {
    const bool first = mesh_->coordinate[static_cast<std::size_t>(mesh_dim)] == 0;
    std::vector<at::Tensor> locals;
    std::vector<double> present;
    for (auto& parameter : bucket) {
      at::Tensor& gradient = parameter.mutable_grad();
      present.push_back(is_dtensor(gradient) ? 1 : 0);
      if (!is_dtensor(gradient)) {
        locals.push_back(at::zeros_like(meta(parameter).local));
        continue;
      }
      // A gradient cut over this dimension (unusual) is brought to the parameter's placements first.
      if (meta(gradient).layout->placement(mesh_dim).is_sharded()) gradient = move(gradient, meta(parameter).layout);
      const bool counts = meta(gradient).layout->placement(mesh_dim).is_partial() || first;
      locals.push_back(counts ? meta(gradient).local : at::zeros_like(meta(gradient).local));
    }
    locals.push_back(at::tensor(present, locals.front().options()));
    auto flat = flatten(locals);
    mesh_->group(mesh_dim).all_reduce(flat, ReduceOp::sum).wait();
    const auto flags = flat.narrow(0, flat.numel() - static_cast<std::int64_t>(bucket.size()),
                                   static_cast<std::int64_t>(bucket.size()))
                           .to(at::kCPU, at::kDouble);
    std::vector<at::Tensor*> gradients;
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      const auto size = locals[i].numel();
      if (flags[static_cast<std::int64_t>(i)].item<double>() > 0) {
        at::Tensor& gradient = bucket[i].mutable_grad();
        if (!is_dtensor(gradient))
          gradient = wrap(at::zeros_like(meta(bucket[i]).local), meta(bucket[i]).layout, mesh_, bucket[i].sizes());
        write(gradient, flat.narrow(0, offset, size), mesh_dim);
      }
      offset += size;
    }
  }

  at::Tensor flatten(const std::vector<at::Tensor>& tensors) const {
    std::vector<at::Tensor> parts;
    for (const auto& tensor : tensors) {
      auto part = tensor.reshape({-1});
      parts.push_back(reduce_dtype_ ? part.to(*reduce_dtype_) : part);
    }
    return at::cat(parts);
  }

  void unflatten(const at::Tensor& flat, const std::vector<at::Tensor*>& gradients, int mesh_dim) {
    std::int64_t offset = 0;
    for (auto* gradient : gradients) {
      const auto size = meta(*gradient).local.numel();
      write(*gradient, flat.narrow(0, offset, size), mesh_dim);
      offset += size;
    }
  }

  // The reduced values into a gradient, whole on `mesh_dim` now. The tensor that user code may hold stays the same object
  // where its placement does; the values are written to its own memory.
  void write(at::Tensor& gradient, const at::Tensor& values, int mesh_dim) {
    auto& data = meta(gradient);
    const Layout* layout = data.layout->with(mesh_dim, Placement());
    auto local = values.view(data.local.sizes()).to(data.local.scalar_type());
    if (local.is_alias_of(values)) local = local.clone();
    gradient = wrap(local, layout, data.mesh, gradient.sizes());
  }

  // What is left: placements on the parameter's other dimensions.
  void settle(at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!is_dtensor(gradient) || !is_dtensor(parameter)) return;
    if (meta(gradient).layout != meta(parameter).layout) gradient = move(gradient, meta(parameter).layout);
  }

  c10::intrusive_ptr<MeshState> mesh_;
  std::optional<int> dp_;
  std::optional<at::ScalarType> reduce_dtype_;
  std::vector<std::vector<at::Tensor>> buckets_;
  bool queued_ = false;
};

}  // namespace

void install_gradient_synchronization(const void* owner, const std::vector<at::Tensor>& parameters,
                                      const DeviceMesh& mesh, const std::optional<DataParallel>& data_parallel) {
  auto synchronizer = std::make_shared<Synchronizer>(parameters, mesh, data_parallel);
  synchronizer->install();
  mesh.world().slot<Synchronizers>().by_module[owner] = std::move(synchronizer);
}

void remove_gradient_synchronization(const void* owner, World& world) {
  world.slot<Synchronizers>().by_module.erase(owner);
}

}  // namespace detail

struct NoGradientSync::State {
  std::shared_ptr<detail::Synchronizer> synchronizer;
};

NoGradientSync::NoGradientSync(torch::nn::Module& module) : NoGradientSync(static_cast<const void*>(&module)) {}
NoGradientSync::NoGradientSync(const torch::jit::Module& module)
    : NoGradientSync(static_cast<const void*>(module._ivalue().get())) {}
NoGradientSync::NoGradientSync(const void* owner) : state_(std::make_unique<State>()) {
  auto& all = World::current().slot<detail::Synchronizers>().by_module;
  const auto found = all.find(owner);
  if (found == all.end())
    throw PlanError({"NoGradientSync: no plan was applied to this module"});
  state_->synchronizer = found->second;
  ++state_->synchronizer->paused;
}
NoGradientSync::~NoGradientSync() { --state_->synchronizer->paused; }

}  // namespace dtensor
