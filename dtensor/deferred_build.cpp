#include "dtensor/deferred_build.h"

#include "comm/policy.h"
#include "dtensor/operator_info.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

namespace dtensor {
namespace {

using c10::DispatchKey;
using Stack = torch::jit::Stack;

// A meta tensor as an operator saw it: handles of one storage with one geometry are the same tensor to a replay.
struct Seen {
  const void* storage = nullptr;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  auto key() const { return std::tie(storage, sizes, strides, offset); }
  friend bool operator<(const Seen& a, const Seen& b) { return a.key() < b.key(); }
  friend bool operator==(const Seen& a, const Seen& b) { return a.key() == b.key(); }
};
Seen seen(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
}

// Every tensor of a value, in order; what `visit` returns takes its place.
template <typename Visit>
c10::IValue with_tensors(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(visit(value.toTensor())) : value;
  if (value.isTensorList()) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(visit(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(visit(*tensor)) : tensor);
    return list;
  }
  return value;
}

struct Step {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments, results;  // meta tensors keep their storage, and so their identity, alive
  std::vector<Seen> inputs, outputs;            // of the meta tensors among them
  std::vector<Seen> written;                    // of those among the inputs
};

std::vector<Seen> meta_tensors(const std::vector<c10::IValue>& values) {
  std::vector<Seen> found;
  for (const auto& value : values)
    with_tensors(value, [&](const at::Tensor& tensor) {
      if (tensor.is_meta()) found.push_back(seen(tensor));
      return tensor;
    });
  return found;
}

}  // namespace

struct DeferredBuild::Record {
  std::vector<Step> steps;
};

namespace {

thread_local DeferredBuild::Record* recording = nullptr;

// For DispatchKey::DeferredInit, which LibTorch keeps for this purpose and does not use itself.
void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, DispatchKey::DeferredInit);
  const auto count = op.schema().arguments().size();
  if (!recording || op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd))
    return op.redispatchBoxed(below, stack);  // it is made of others, which come here
  std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  bool any = false;
  for (auto& argument : arguments)
    argument = with_tensors(argument, [&](const at::Tensor& tensor) {
      any = true;
      return tensor.is_meta() ? tensor : tensor.detach().clone();  // a plain one may change later
    });
  const auto base = stack->size() - count;
  for (std::size_t i = 0; i < count && !any; ++i) {
    c10::IValue& argument = (*stack)[base + i];
    if (op.schema().arguments()[i].name() == "device" && argument.isNone()) argument = c10::Device(c10::kMeta);
  }
  Step step{op, std::move(arguments), {}, {}, {}, {}};
  step.inputs = meta_tensors(step.arguments);
  for (std::size_t i = 0; i < count; ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (!alias || !alias->isWrite()) continue;
    const auto some = meta_tensors({step.arguments[i]});
    step.written.insert(step.written.end(), some.begin(), some.end());
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard inside(DispatchKey::DeferredInit);
    op.callBoxed(stack);
  }
  step.results.assign(stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end());
  step.outputs = meta_tensors(step.results);
  if (!step.inputs.empty() || !step.outputs.empty()) recording->steps.push_back(std::move(step));
}

void register_recorder() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* library =
        new torch::Library(torch::Library::IMPL, "_", DispatchKey::DeferredInit, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
  });
}

// Runs what a record did to the tensors wanted, on DTensors.
class Replay {
 public:
  Replay(const std::vector<Step>& steps, const DeviceMesh& mesh) : steps_(steps), mesh_(mesh) {}

  void want(const Seen& tensor, const Placements& placements) {
    needed_.insert(tensor.storage);
    placed_.try_emplace(tensor.storage, Target{tensor.sizes, placements});
  }

  void run() {
    choose();
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (chosen_[i]) run(steps_[i]);
  }

  at::Tensor value(const Seen& tensor) const {
    const auto found = values_.find(tensor);
    return found == values_.end() ? at::Tensor() : found->second;
  }

 private:
  struct Target {
    std::vector<std::int64_t> sizes;
    Placements placements;
  };

  // From the last step to the first: which steps matter, and where what they start from should lie. A tensor that becomes
  // a wanted one of the same sizes (by a cast) lies as that one.
  void choose() {
    chosen_.assign(steps_.size(), false);
    std::map<const void*, Seen> made;
    for (const auto& step : steps_)
      for (const auto& output : step.outputs) made.try_emplace(output.storage, output);
    for (std::size_t i = steps_.size(); i-- > 0;) {
      const Step& step = steps_[i];
      const auto needs = [&](const Seen& tensor) { return needed_.count(tensor.storage) > 0; };
      const bool makes = std::any_of(step.outputs.begin(), step.outputs.end(), needs);
      const bool writes = std::any_of(step.written.begin(), step.written.end(), needs);
      if (!makes && !writes) continue;
      chosen_[i] = true;
      for (const auto& input : step.inputs) {
        needed_.insert(input.storage);
        for (const auto& output : step.outputs)
          if (const auto target = placed_.find(output.storage); target != placed_.end() && input.sizes == target->second.sizes)
            placed_.try_emplace(input.storage, target->second);
      }
      for (const auto& input : step.written)
        if (!(input == made.at(input.storage))) whole_.insert(input.storage);  // through a view
    }
  }

  // A new tensor of this rank's part.
  at::Tensor make(const Step& step) const {
    const Seen& output = step.outputs.at(0);
    const auto name = step.op.schema().name();
    auto placements = Placements(static_cast<std::size_t>(mesh_.ndim()), Replicate());
    const auto target = placed_.find(output.storage);
    if (target != placed_.end() && target->second.sizes == output.sizes && whole_.count(output.storage) == 0)
      placements = target->second.placements;
    const auto options = at::TensorOptions(step.results.at(0).toTensor().scalar_type());
    if (name == "aten::empty" || name == "aten::empty_strided") return empty(output.sizes, mesh_, placements, options);
    if (name == "aten::zeros") return zeros(output.sizes, mesh_, placements, options);
    if (name == "aten::ones") return ones(output.sizes, mesh_, placements, options);
    if (name == "aten::full") return full(output.sizes, step.arguments[1].toScalar(), mesh_, placements, options);
    if (name == "aten::rand") return rand(output.sizes, mesh_, placements, options);
    if (name == "aten::randn") return randn(output.sizes, mesh_, placements, options);
    if (detail::operator_info(step.op).random)
      throw UnsupportedError(fmt::format(
          "DeferredBuild: {} draws a tensor by LibTorch's generator, which differs between ranks. Draw it with rand, randn, "
          "or an in-place operator such as uniform_ or normal_.",
          name));
    Stack stack(step.arguments.begin(), step.arguments.end());
    for (std::size_t i = 0; i < stack.size(); ++i)
      if (step.op.schema().arguments()[i].name() == "device") stack[i] = mesh_.device();
    step.op.callBoxed(stack);
    return distribute_tensor(stack.at(0).toTensor(), mesh_, placements, {std::nullopt});
  }

  void run(const Step& step) {
    if (step.inputs.empty()) {
      values_[step.outputs.at(0)] = make(step);
      return;
    }
    Stack stack;
    // Arguments as they were at the step: a handle may have been given other memory since (set_data).
    auto input = step.inputs.begin();
    for (const auto& argument : step.arguments)
      stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
        if (!tensor.is_meta()) return tensor;
        const auto found = values_.find(*input++);
        if (found == values_.end())
          throw UnsupportedError(fmt::format(
              "DeferredBuild: {} reads a meta tensor that was not made inside build()", step.op.schema().name()));
        return found->second;
      }));
    step.op.callBoxed(stack);
    std::vector<at::Tensor> results;
    for (const auto& value : stack)
      with_tensors(value, [&](const at::Tensor& tensor) {
        results.push_back(tensor);
        return tensor;
      });
    for (std::size_t i = 0; i < step.outputs.size() && i < results.size(); ++i) values_[step.outputs[i]] = results[i];
  }

  const std::vector<Step>& steps_;
  const DeviceMesh& mesh_;
  std::set<const void*> needed_, whole_;     // storages
  std::map<const void*, Target> placed_;     // by storage
  std::vector<bool> chosen_;                 // per step
  std::map<Seen, at::Tensor> values_;
};

}  // namespace

DeferredBuild::DeferredBuild() : record_(std::make_unique<Record>()) {}
DeferredBuild::~DeferredBuild() = default;

DeferredBuild::Recording::Recording(DeferredBuild& build)
    : former_(recording), was_included_(c10::impl::tls_is_dispatch_key_included(DispatchKey::DeferredInit)) {
  register_recorder();
  recording = build.record_.get();
  c10::impl::tls_set_dispatch_key_included(DispatchKey::DeferredInit, true);
}
DeferredBuild::Recording::~Recording() {
  recording = former_;
  c10::impl::tls_set_dispatch_key_included(DispatchKey::DeferredInit, was_included_);
}

std::vector<DTensor> DeferredBuild::materialize(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                                const std::vector<Placements>& placements) const {
  TORCH_CHECK_VALUE(tensors.size() == placements.size(), "materialize: as many placements as tensors");
  const at::NoGradGuard no_grad;
  const PolicyGuard plain_values(mesh.world(), {Fallback::warn, ImplicitMoves::allow, PlainTensors::replicate_checked});
  Replay replay(record_->steps, mesh);
  for (std::size_t i = 0; i < tensors.size(); ++i) replay.want(seen(tensors[i]), placements[i]);
  replay.run();
  std::vector<DTensor> results;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto value = replay.value(seen(tensors[i]));
    if (!value.defined())
      throw UnsupportedError(fmt::format("DeferredBuild: a {} tensor of sizes {} was not made inside build()",
                                         tensors[i].is_meta() ? "meta" : "plain", c10::str(tensors[i].sizes())));
    results.push_back(as_dtensor(value).redistribute(placements[i]));
  }
  return results;
}

}  // namespace dtensor
