#include "parallelize/gradient_synchronization.h"

#include "parallelize/bucket_size.h"
#include "parallelize/gradient_bucket.h"

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

std::optional<at::ScalarType> dtype_of(const std::string& reduce_dtype) {
  if (reduce_dtype.empty()) return std::nullopt;
  return reduce_dtype == "float64"    ? at::kDouble
         : reduce_dtype == "float32"  ? at::kFloat
         : reduce_dtype == "bfloat16" ? at::kBFloat16
                                      : at::kHalf;
}

// All synchronizers of a World by module, so that NoGradientSync finds them.
struct Synchronizers {
  std::map<const void*, std::shared_ptr<Synchronizer>> by_module;
  int installed = 0;  // so far; the same on all ranks, as plans are applied by all
};

class Synchronizer : public std::enable_shared_from_this<Synchronizer> {
 public:
  Synchronizer(const std::vector<at::Tensor>& parameters, const DeviceMesh& mesh,
               const std::optional<DataParallel>& data_parallel, int number)
      : mesh_(mesh.state()), number_(number) {
    if (data_parallel && mesh.is_member()) {
      const int dim = mesh.layout().dim(data_parallel->dim);
      if (mesh.layout().size(dim) > 1) reduction_ = {mesh_, dim, dtype_of(data_parallel->reduce_dtype)};
    }
    for (int dim = 0; dim < mesh.layout().ndim() && mesh.is_member(); ++dim)
      if (mesh.layout().size(dim) > 1 && !(reduction_ && dim == reduction_->mesh_dim)) other_dims_.push_back(dim);
    has_agreed_ = other_dims_.empty();
    double bucket_mb = reduction_ ? data_parallel->bucket_mb : DataParallel().bucket_mb;
    if (bucket_mb == DataParallel::bucket_mb_auto) bucket_mb = measured_bucket_mb(mesh, reduction_->mesh_dim);
    const double limit = bucket_mb * 1024 * 1024;
    // Gradients become ready from the last parameter to the first.
    std::vector<at::Tensor> bucket;
    double filled = 0;
    for (std::size_t i = parameters.size(); i-- > 0;) {
      const auto& parameter = parameters[i];
      if (!parameter.requires_grad()) continue;
      const double bytes = static_cast<double>(meta(parameter).local.nbytes());
      if (!bucket.empty() && (filled + bytes > limit || bucket.back().scalar_type() != parameter.scalar_type())) {
        buckets_.emplace_back(bucket);
        bucket.clear();
        filled = 0;
      }
      bucket.push_back(parameter);
      filled += bytes;
    }
    if (!bucket.empty()) buckets_.emplace_back(bucket);
  }

  void install() {
    for (std::size_t i = 0; i < buckets_.size(); ++i)
      for (auto& parameter : buckets_[i].parameters()) {
        std::weak_ptr<Synchronizer> weak = shared_from_this();
        torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<AfterAccumulation>(weak, i));
        c10::TensorImpl* leaf = parameter.unsafeGetTensorImpl();
        parameter.register_hook([weak, i, leaf](const at::Tensor& gradient) {
          if (auto self = weak.lock()) self->before_accumulation(i, leaf, gradient);
          return gradient;
        });
      }
  }

  int paused = 0;  // NoGradientSync scopes

 private:
  struct AfterAccumulation : torch::autograd::PostAccumulateGradHook {
    AfterAccumulation(std::weak_ptr<Synchronizer> synchronizer, std::size_t index)
        : weak(std::move(synchronizer)), bucket(index) {}
    void operator()(const torch::autograd::Variable&) override {
      if (auto self = weak.lock()) self->after_accumulation(bucket);
    }
    std::weak_ptr<Synchronizer> weak;
    std::size_t bucket;
  };

  // A backward pass, from the first gradient to the callback at its end. The engine drops the callback when the pass fails.
  struct Pass {
    explicit Pass(std::weak_ptr<Synchronizer> synchronizer) : weak(std::move(synchronizer)) {}
    ~Pass() {
      const auto self = has_ended ? nullptr : weak.lock();
      if (self)
        for (auto& bucket : self->buckets_) bucket.abandon();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    std::weak_ptr<Synchronizer> weak;
    bool has_ended = false;
  };

  // What collectives on gradients need around them.
  struct Scope {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    CollectiveReason reason{"gradient"};
  };

  // A gradient that is reduced already meets a pending one: it becomes pending first, which is free, so that the sum is
  // reduced once.
  void before_accumulation(std::size_t bucket, c10::TensorImpl* leaf, const at::Tensor& gradient) {
    if (reduction_) {
      const Scope scope;
      buckets_[bucket].before_accumulation(*reduction_);
    }
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

  void after_accumulation(std::size_t bucket) {
    if (paused > 0) return;
    if (pass_.expired()) {
      const auto pass = std::make_shared<Pass>(shared_from_this());
      torch::autograd::Engine::get_default_engine().queue_callback([pass] {
        pass->has_ended = true;
        if (const auto self = pass->weak.lock()) self->end_pass();
      });
      pass_ = pass;
    }
    buckets_[bucket].after_accumulation();
    if (!reduction_ || !has_agreed_) return;
    const Scope scope;
    // In order, and never the last one: it says how the others ended.
    for (std::size_t i = 0; i + 1 < buckets_.size(); ++i) {
      if (buckets_[i].is_launched()) continue;
      if (!buckets_[i].is_ready(*reduction_)) break;
      buckets_[i].launch(*reduction_, group());
    }
  }

  void end_pass() {
    pass_.reset();
    const Scope scope;
    try {
      if (reduction_) sum_over_data_parallel();
      for (auto& bucket : buckets_) {
        auto parameters = bucket.parameters();
        sum_over_others(parameters);
        for (auto& parameter : parameters) settle(parameter);
      }
    } catch (...) {
      for (auto& bucket : buckets_) bucket.reset();
      throw;
    }
    for (auto& bucket : buckets_) bucket.reset();
  }

  void sum_over_data_parallel() {
    if (!has_agreed_) agree();
    std::vector<double> endings;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      auto& bucket = buckets_[i];
      const bool is_last = i + 1 == buckets_.size();
      if (!bucket.is_launched()) bucket.launch(*reduction_, group(), is_last ? endings : std::vector<double>());
      for (const bool ending : {bucket.is_stale(), bucket.is_abandoned(), !bucket.is_abandoned()}) endings.push_back(ending ? 1 : 0);
    }
    std::vector<double> sums;
    for (auto& bucket : buckets_) sums = bucket.finish(*reduction_);
    std::vector<GradientBucket*> again;
    for (std::size_t i = 0; 3 * i < sums.size(); ++i) {
      if (sums[3 * i + 1] > 0 && sums[3 * i + 2] > 0)
        throw DesyncError("gradient synchronisation over mesh dimension '" + mesh_->layout->names()[static_cast<std::size_t>(reduction_->mesh_dim)] +
                          "', rank " + std::to_string(mesh_->world->rank()) +
                          ": an earlier backward pass failed on some ranks after they had sent gradients and on others before, "
                          "so that gradients of two passes were added. End the run and go on from a checkpoint");
      if (sums[3 * i] > 0) again.push_back(&buckets_[i]);
    }
    for (auto* bucket : again) bucket->launch(*reduction_, group());
    for (auto* bucket : again) bucket->finish(*reduction_);
  }

  // Once, before the first sum: on which other mesh dimensions the gradients are pending on all ranks.
  void agree() {
    std::vector<double> observed;
    for (auto& bucket : buckets_) {
      const auto part = bucket.observations(*reduction_);
      observed.insert(observed.end(), part.begin(), part.end());
    }
    if (!buckets_.empty()) {
      const auto device = meta(buckets_.front().parameters().front()).local.device();
      auto numbers = at::tensor(observed, at::TensorOptions(at::kFloat).device(device));
      group().all_reduce(numbers, ReduceOp::sum).wait();
      numbers = numbers.to(at::kCPU, at::kDouble);
      const double* sums = numbers.const_data_ptr<double>();
      for (auto& bucket : buckets_) {
        bucket.expect(*reduction_, sums);
        sums += bucket.observations(*reduction_).size();
      }
    }
    has_agreed_ = true;
  }

  // Gradients that are pending on other mesh dimensions, in one all-reduce per set of such dimensions.
  void sum_over_others(std::vector<at::Tensor>& parameters) {
    std::map<std::vector<int>, std::vector<at::Tensor*>> pending;
    for (auto& parameter : parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!is_dtensor(gradient)) continue;
      std::vector<int> dims;
      for (const int dim : other_dims_) {
        const auto& placement = meta(gradient).layout->placement(dim);
        if (placement.is_partial() && placement.reduce_op() == ReduceOp::sum) dims.push_back(dim);
      }
      if (!dims.empty()) pending[dims].push_back(&gradient);
    }
    for (auto& [dims, gradients] : pending) {
      std::vector<at::Tensor> parts;
      for (const auto* gradient : gradients) {
        const auto part = meta(*gradient).local.reshape({-1});
        parts.push_back(reduction_ && reduction_->dtype ? part.to(*reduction_->dtype) : part);
      }
      auto flat = at::cat(parts);
      mesh_->group(dims).all_reduce(flat, ReduceOp::sum).wait();
      std::int64_t offset = 0;
      for (auto* gradient : gradients) {
        const auto& data = meta(*gradient);
        const Layout* layout = data.layout;
        for (const int dim : dims) layout = layout->with(dim, Replicate());
        auto local = flat.narrow(0, offset, data.local.numel()).view(data.local.sizes()).to(data.local.scalar_type());
        offset += local.numel();
        *gradient = wrap(local, layout, data.mesh, gradient->sizes());
      }
    }
  }

  // What is left: placements on the parameter's other dimensions.
  void settle(at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!is_dtensor(gradient) || !is_dtensor(parameter)) return;
    if (meta(gradient).layout != meta(parameter).layout) gradient = move(gradient, meta(parameter).layout);
  }

  // Sums that start in the middle of the pass, on each rank at a time of its own, need connections that nobody else uses.
  Group& group() {
    if (!group_) {
      auto& shared = mesh_->group(reduction_->mesh_dim);
      group_ = buckets_.size() > 1 ? shared.duplicate("gradients of plan " + std::to_string(number_)) : c10::intrusive_ptr<Group>::reclaim_copy(&shared);
    }
    return *group_;
  }

  c10::intrusive_ptr<MeshState> mesh_;
  int number_;
  std::optional<DataParallelReduction> reduction_;  // none without data parallelism
  std::vector<int> other_dims_;
  c10::intrusive_ptr<Group> group_;
  std::vector<GradientBucket> buckets_;
  std::weak_ptr<Pass> pass_;
  bool has_agreed_ = false;
};

}  // namespace

void install_gradient_synchronization(const void* owner, const std::vector<at::Tensor>& parameters,
                                      const DeviceMesh& mesh, const std::optional<DataParallel>& data_parallel) {
  auto& all = mesh.world().slot<Synchronizers>();
  auto synchronizer = std::make_shared<Synchronizer>(parameters, mesh, data_parallel, ++all.installed);
  synchronizer->install();
  all.by_module[owner] = std::move(synchronizer);
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
