// The text, as batches of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace train_gpt {

struct Batch {
  at::Tensor inputs;   // (batch, sequence), int64
  at::Tensor targets;  // the same shape: each position's next byte
};

class Text {
 public:
  // Errors: std::runtime_error when the file cannot be read.
  explicit Text(const std::string& path);

  std::int64_t size() const { return bytes_.numel(); }

  // The global batch of a step: a function of its arguments alone, so that every rank draws the same without talking.
  // Errors: std::runtime_error when the text is shorter than a sequence and one byte.
  Batch batch(std::int64_t batch, std::int64_t sequence, std::int64_t seed, std::int64_t step) const;

  // Its first bytes, (1, length), int64. Errors: as `batch`.
  at::Tensor opening(std::int64_t length) const;

 private:
  at::Tensor bytes_;  // uint8
};

}  // namespace train_gpt
