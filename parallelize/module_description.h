// What a plan needs to know of a module: paths, types, tensors. Made from a module, or from a file of names and sizes
// without the program (describe_file in model_file.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

// The module types that styles know, by what their forward reads.
enum class ModuleKind : std::uint8_t { linear, embedding, norm, no_parameters, other };

// A parameter or buffer. Tied ones are one.
struct DescribedTensor {
  std::string name;                  // path of the first owner
  std::vector<std::string> aliases;  // other paths
  std::vector<std::int64_t> sizes;
  std::string dtype;
  std::int64_t element_size = 4;
  bool buffer = false;
  bool is_dtensor = false;          // parallelised already
  at::Tensor tensor;                // undefined when described from a file
  std::vector<at::Tensor> members;  // other handles on it: typed members rebound by assignment
};

struct DescribedModule {
  std::string path;
  std::string type;
  ModuleKind kind = ModuleKind::other;
  std::optional<std::size_t> weight, bias;  // what forward reads, as an index into `tensors`
  bool unregistered_weight = false;         // forward reads a tensor that the module tree does not hold
  bool in_sequential = false;               // a child of a Sequential, called with what its predecessor gives
  std::vector<std::string> points;          // that its forward passes to constrain (points.h)
  torch::nn::Module* module = nullptr;
  torch::nn::Module* parent = nullptr;
};

struct ModuleDescription {
  std::vector<DescribedTensor> tensors;  // in registration order
  std::vector<DescribedModule>
      modules;  // without the root, in registration order: a parent before its children
  std::vector<std::string> notes;
};

ModuleDescription describe(torch::nn::Module& module);

}  // namespace dtensor
