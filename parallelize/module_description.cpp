#include "parallelize/module_description.h"

#include "dtensor/dtensor.h"
#include "parallelize/points.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <unordered_map>

namespace dtensor {
namespace {

struct KnownModule {
  ModuleKind kind = ModuleKind::other;
  at::Tensor weight, bias;  // the typed members, which are what forward reads
};

KnownModule classify(torch::nn::Module& module) {
  using Kind = ModuleKind;
  if (auto* linear = module.as<torch::nn::LinearImpl>()) return {Kind::linear, linear->weight, linear->bias};
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>())
    return {Kind::embedding, embedding->weight, {}};
  if (auto* norm = module.as<torch::nn::LayerNormImpl>()) return {Kind::norm, norm->weight, norm->bias};
  const auto parameters = module.named_parameters(false);
  if (parameters.is_empty() && module.parameters(true).empty()) return {Kind::no_parameters, {}, {}};
  // A norm of the user's own: vectors named weight and bias.
  at::Tensor weight, bias;
  bool vectors = true;
  for (const auto& parameter : parameters) {
    vectors = vectors && parameter.value().dim() == 1;
    if (parameter.key() == "weight") weight = parameter.value();
    if (parameter.key() == "bias") bias = parameter.value();
  }
  if (vectors && weight.defined() && module.children().empty()) return {Kind::norm, weight, bias};
  return {};
}

class Describer {
 public:
  ModuleDescription run(torch::nn::Module& root) {
    for (const auto& parameter : root.named_parameters(true)) add(parameter.key(), parameter.value(), false);
    for (const auto& buffer : root.named_buffers(true)) add(buffer.key(), buffer.value(), true);
    walk(root, "");
    return std::move(result_);
  }

 private:
  void walk(torch::nn::Module& parent, const std::string& prefix) {
    const bool sequential = parent.as<torch::nn::SequentialImpl>() != nullptr;
    for (const auto& child : parent.named_children()) {
      DescribedModule entry;
      entry.path = prefix + child.key();
      entry.type = child.value()->name();
      entry.in_sequential = sequential;
      entry.module = child.value().get();
      entry.parent = &parent;
      entry.points = detail::declared_points(*child.value());
      const auto known = classify(*child.value());
      entry.kind = known.kind;
      entry.weight = member(known.weight, entry);
      entry.bias = member(known.bias, entry);
      entry.unregistered_weight = known.weight.defined() && !entry.weight;
      const auto path = entry.path;
      result_.modules.push_back(std::move(entry));
      walk(*child.value(), path + ".");
    }
  }

  void add(const std::string& name, const at::Tensor& tensor, bool buffer) {
    if (!tensor.defined()) return;
    if (const auto same = find(tensor)) {
      auto& entry = result_.tensors[*same];
      entry.aliases.push_back(name);
      if (!entry.tensor.is_same(tensor)) entry.members.push_back(tensor);
      return;
    }
    DescribedTensor entry;
    entry.name = name;
    entry.sizes = tensor.sizes().vec();
    entry.dtype = c10::toString(tensor.scalar_type());
    entry.element_size = static_cast<std::int64_t>(tensor.element_size());
    entry.buffer = buffer;
    entry.is_dtensor = is_dtensor(tensor);
    entry.tensor = tensor;
    const auto index = result_.tensors.size();
    by_handle_.emplace(tensor.unsafeGetTensorImpl(), index);
    if (has_memory(tensor)) by_memory_.emplace(tensor.data_ptr(), index);
    result_.tensors.push_back(std::move(entry));
  }

  static bool has_memory(const at::Tensor& tensor) {
    return !is_dtensor(tensor) && tensor.numel() > 0 && tensor.has_storage() && tensor.data_ptr() != nullptr;
  }

  // Tied: the same tensor, or another handle on the same memory.
  std::optional<std::size_t> find(const at::Tensor& tensor) const {
    if (const auto at = by_handle_.find(tensor.unsafeGetTensorImpl()); at != by_handle_.end())
      return at->second;
    if (!has_memory(tensor)) return std::nullopt;
    const auto at = by_memory_.find(tensor.data_ptr());
    if (at == by_memory_.end() || result_.tensors[at->second].tensor.sizes() != tensor.sizes())
      return std::nullopt;
    return at->second;
  }

  // The tensor that a typed member holds. A member rebound by assignment (b->weight = a->weight) is found by its
  // memory; the registered slot that nobody reads then stays as it is and is reported.
  std::optional<std::size_t> member(const at::Tensor& tensor, const DescribedModule& owner) {
    if (!tensor.defined()) return std::nullopt;
    const auto index = find(tensor);
    if (!index) return std::nullopt;
    auto& entry = result_.tensors[*index];
    const auto owned = [&](const std::string& name) { return name.starts_with(owner.path + "."); };
    if (!owned(entry.name) && std::none_of(entry.aliases.begin(), entry.aliases.end(), owned)) {
      entry.aliases.push_back(owner.path);
      result_.notes.push_back(fmt::format(
          "module \"{}\" reads \"{}\" (tied by assignment); its own registered parameter is read by nobody",
          owner.path, entry.name));
    }
    const auto same = [&](const at::Tensor& known) { return known.is_same(tensor); };
    if (!same(entry.tensor) && std::none_of(entry.members.begin(), entry.members.end(), same))
      entry.members.push_back(tensor);
    return index;
  }

  ModuleDescription result_;
  std::unordered_map<const void*, std::size_t> by_handle_, by_memory_;
};

}  // namespace

ModuleDescription describe(torch::nn::Module& module) { return Describer().run(module); }

}  // namespace dtensor
