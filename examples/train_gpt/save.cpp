#include "save.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <stdexcept>
#include <vector>

namespace train_gpt {

void save_parameters(const std::string& path, const std::map<std::string, at::Tensor>& parameters) {
  c10::Dict<std::string, at::Tensor> entries;
  for (const auto& [name, value] : parameters) entries.insert(name, value);
  const std::vector<char> bytes = torch::jit::pickle_save(entries);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write the parameters to " + path);
}

}  // namespace train_gpt
