// Text from a trained model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace train_gpt {

struct SampleOptions {
  std::int64_t bytes = 200;
  double temperature = 0.8;
  std::uint64_t seed = 1;
};

// Continues `prompt` (1, time) byte by byte. `next_logits` takes tokens of that shape and gives the logits of what
// follows the last one: a plain CPU tensor (vocabulary). Every rank that passes the same values draws the same text.
// Bytes that are neither printable ASCII nor a line feed come out as '?'.
std::string sample(at::Tensor prompt, const std::function<at::Tensor(const at::Tensor&)>& next_logits,
                   const SampleOptions& options);

}  // namespace train_gpt
