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
    for (const auto& parameter : root.named_parameters(true)) tensors_.add(parameter.key(), parameter.value(), false);
    for (const auto& buffer : root.named_buffers(true)) tensors_.add(buffer.key(), buffer.value(), true);
    walk(root, "");
    return std::move(result_);
  }

 private:
  void walk(torch::nn::Module& parent, const std::string& prefix) {
    const bool sequential = parent.as<torch::nn::SequentialImpl>() != nullptr;
    for (const auto& child : parent.named_children()) {
      DescribedModule entry;
      entry.path = prefix + child.key();
      entry.type = type_name(*child.value());
      entry.in_sequential = sequential;
      entry.module = child.value().get();
      entry.parent = &parent;
      entry.points = detail::declared_points(*child.value());
      const auto known = classify(*child.value());
      entry.kind = known.kind;
      entry.weight = tensors_.member(known.weight, entry);
      entry.bias = tensors_.member(known.bias, entry);
      entry.unregistered_weight = known.weight.defined() && !entry.weight;
      const auto path = entry.path;
      result_.modules.push_back(std::move(entry));
      walk(*child.value(), path + ".");
    }
  }

  ModuleDescription result_;
  detail::DescribedTensors tensors_{result_};
};

}  // namespace

ModuleDescription describe(torch::nn::Module& module) { return Describer().run(module); }

}  // namespace dtensor
