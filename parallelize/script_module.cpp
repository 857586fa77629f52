#include "parallelize/script_module.h"

#include "parallelize/apply_plan.h"
#include "parallelize/described_tensors.h"
#include "placements/error.h"

#include <torch/csrc/jit/api/module.h>

#include <string_view>

namespace dtensor {
namespace {

// The Python class, without its package and without the number that TorchScript appends to tell copies apart.
std::string type_of(const torch::jit::Module& module) {
  const auto& name = module.type()->name();
  return name ? name->name() : "";
}

at::Tensor own(const torch::jit::Module& module, std::string_view name) {
  for (const auto& parameter : module.named_parameters(false))
    if (parameter.name == name) return parameter.value;
  return {};
}

ModuleKind kind_of(const torch::jit::Module& module, const std::string& type) {
  if (type == "Linear" || type == "NonDynamicallyQuantizableLinear") return ModuleKind::linear;
  if (type == "Embedding") return ModuleKind::embedding;
  bool vectors = true, any = false;
  for (const auto& parameter : module.named_parameters(false)) {
    any = true;
    vectors = vectors && parameter.value.dim() == 1;
  }
  if (any) return vectors && own(module, "weight").defined() ? ModuleKind::norm : ModuleKind::other;
  return module.named_parameters(true).size() == 0 ? ModuleKind::no_parameters : ModuleKind::other;
}

void walk(const torch::jit::Module& parent, const std::string& prefix, ModuleDescription& description,
          detail::DescribedTensors& tensors) {
  for (const auto& child : parent.named_children()) {
    DescribedModule entry;
    entry.path = prefix + child.name;
    entry.type = type_of(child.value);
    entry.kind = kind_of(child.value, entry.type);
    if (entry.kind != ModuleKind::other) {
      entry.weight = tensors.member(own(child.value, "weight"), entry);
      entry.bias = tensors.member(own(child.value, "bias"), entry);
    }
    const auto path = entry.path;
    description.modules.push_back(std::move(entry));
    walk(child.value, path + ".", description, tensors);
  }
}

}  // namespace

ModuleDescription describe(const torch::jit::Module& module) {
  ModuleDescription description;
  detail::DescribedTensors tensors(description);
  for (const auto& parameter : module.named_parameters(true)) tensors.add(parameter.name, parameter.value, false);
  for (const auto& buffer : module.named_buffers(true)) tensors.add(buffer.name, buffer.value, true);
  walk(module, "", description, tensors);
  return description;
}

ApplyReport parallelize_module(torch::jit::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                               const ApplyOptions& options) {
  const auto description = describe(module);
  if (description.tensors.empty())
    throw UnsupportedError(
        "parallelize_module: the TorchScript module has no parameters (frozen: torch.jit.freeze folds them into the "
        "graph). Load the file from before it was frozen.");
  return detail::apply_plan(description, module._ivalue().get(), mesh, plan, options);
}

void unparallelize(torch::jit::Module& module, const std::vector<torch::optim::Optimizer*>& optimizers) {
  auto description = describe(module);
  detail::undo_plan(description, module._ivalue().get(), optimizers);
}

}  // namespace dtensor
