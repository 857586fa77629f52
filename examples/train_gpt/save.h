// What a job leaves behind.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace train_gpt {

// A dictionary from name to whole tensor, for torch::pickle_load, and for torch.load(..., weights_only=False) in Python. Errors:
// std::runtime_error when the file cannot be written.
void save_parameters(const std::string& path, const std::map<std::string, at::Tensor>& parameters);

}  // namespace train_gpt
