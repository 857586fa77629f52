// Where a job runs: one process, or ranks with a plan. All that differs between the two is behind this interface, so
// that the training loop (train.cpp) is one and the same.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace train_gpt {

using BytesByDim = std::map<std::string, std::int64_t>;  // mesh dimension -> bytes that this rank received

class Setting {
 public:
  virtual ~Setting() = default;

  virtual bool is_first_rank() const = 0;
  // Called once, with the plain model that every rank has built alike.
  virtual void prepare(torch::nn::Module& model) = 0;
  // What the model takes of a batch that every rank holds whole.
  virtual at::Tensor distribute_batch(const at::Tensor& global) = 0;
  // What the model takes of a tensor that is no batch: all of it, on every rank.
  virtual at::Tensor replicate(const at::Tensor& whole) = 0;
  // The plain tensor with all of it, on every rank.
  virtual at::Tensor whole(const at::Tensor& tensor) = 0;
  // While the returned object lives, backward only gathers up gradients; the first backward after it reduces them.
  virtual std::shared_ptr<void> postpone_gradients(torch::nn::Module& model) = 0;
  virtual void clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm) = 0;
  // Received since the last call.
  virtual BytesByDim take_bytes() = 0;
};

// One process, plain LibTorch.
std::unique_ptr<Setting> plain_setting();

}  // namespace train_gpt
