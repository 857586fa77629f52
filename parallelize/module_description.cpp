#include "parallelize/module_description.h"

#include "parallelize/described_tensors.h"
#include "parallelize/points.h"

#include <c10/util/Type.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <typeindex>
#include <unordered_map>

namespace dtensor {
namespace {

struct KnownModule {
  ModuleKind kind = ModuleKind::other;
  at::Tensor weight, bias;  // the typed members, which are what forward reads
};

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

// What a module has of its own, and below.
struct Contents {
  Tensors parameters;
  bool has_children = false;
  bool has_parameters = false;  // here or below
};

KnownModule classify(torch::nn::Module& module, const Contents& contents) {
  using Kind = ModuleKind;
  if (auto* linear = module.as<torch::nn::LinearImpl>()) return {Kind::linear, linear->weight, linear->bias};
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>())
    return {Kind::embedding, embedding->weight, {}};
  if (auto* norm = module.as<torch::nn::LayerNormImpl>()) return {Kind::norm, norm->weight, norm->bias};
  if (!contents.has_parameters) return {Kind::no_parameters, {}, {}};
  // A norm of the user's own: vectors named weight and bias.
  at::Tensor weight, bias;
  bool vectors = true;
  for (const auto& parameter : contents.parameters) {
    vectors = vectors && parameter.value().dim() == 1;
    if (parameter.key() == "weight") weight = parameter.value();
    if (parameter.key() == "bias") bias = parameter.value();
  }
  if (vectors && weight.defined() && !contents.has_children) return {Kind::norm, weight, bias};
  return {};
}

// The type's name. Demangling takes longer than all else that a description does, so once per type.
const std::string& type_name(const torch::nn::Module& module) {
  static thread_local std::unordered_map<std::type_index, std::string> names;
  auto& name = names[std::type_index(typeid(module))];
  if (name.empty()) name = c10::demangle(typeid(module).name());
  return name;
}

class Describer {
 public:
  ModuleDescription run(torch::nn::Module& root) {
    visit(root, "");
    for (const auto& [name, buffer] : buffers_) tensors_.add(name, buffer, true);
    // A module may read what is registered in another, so all tensors are known before.
    for (std::size_t i = 0; i < result_.modules.size(); ++i) {
      auto& entry = result_.modules[i];
      const auto known = classify(*entry.module, contents_[i]);
      entry.kind = known.kind;
      entry.weight = tensors_.member(known.weight, entry);
      entry.bias = tensors_.member(known.bias, entry);
      entry.unregistered_weight = known.weight.defined() && !entry.weight;
    }
    return std::move(result_);
  }

 private:
  // One walk of our own: LibTorch's recursive lists would be another each.
  Contents visit(torch::nn::Module& module, const std::string& prefix) {
    Contents contents;
    contents.parameters = module.named_parameters(false);
    contents.has_parameters = !contents.parameters.is_empty();
    for (const auto& parameter : contents.parameters) tensors_.add(prefix + parameter.key(), parameter.value(), false);
    for (const auto& buffer : module.named_buffers(false)) buffers_.emplace_back(prefix + buffer.key(), buffer.value());
    const bool sequential = module.as<torch::nn::SequentialImpl>() != nullptr;
    for (const auto& child : module.named_children()) {
      DescribedModule entry;
      entry.path = prefix + child.key();
      entry.type = type_name(*child.value());
      entry.in_sequential = sequential;
      entry.module = child.value().get();
      entry.parent = &module;
      entry.points = detail::declared_points(*child.value());
      const auto below = entry.path + ".";
      const auto index = result_.modules.size();
      result_.modules.push_back(std::move(entry));
      contents_.emplace_back();
      auto of_child = visit(*child.value(), below);
      contents.has_children = true;
      contents.has_parameters = contents.has_parameters || of_child.has_parameters;
      contents_[index] = std::move(of_child);
    }
    return contents;
  }

  ModuleDescription result_;
  detail::DescribedTensors tensors_{result_};
  std::vector<Contents> contents_;  // of result_.modules
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
};

}  // namespace

ModuleDescription describe(torch::nn::Module& module) { return Describer().run(module); }

}  // namespace dtensor
