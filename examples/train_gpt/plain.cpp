// The job in one process: every step of the interface is what LibTorch programs do anyway.
#include "setting.h"

#include <torch/nn/utils/clip_grad.h>

namespace train_gpt {
namespace {

class PlainSetting final : public Setting {
 public:
  bool is_first_rank() const override { return true; }
  void prepare(torch::nn::Module&) override {}
  at::Tensor distribute_batch(const at::Tensor& global) override { return global; }
  at::Tensor replicate(const at::Tensor& whole) override { return whole; }
  at::Tensor whole(const at::Tensor& tensor) override { return tensor; }
  std::shared_ptr<void> postpone_gradients(torch::nn::Module&) override { return nullptr; }
  void clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm) override {
    torch::nn::utils::clip_grad_norm_(parameters, max_norm);
  }
  BytesByDim take_bytes() override { return {}; }
};

}  // namespace

std::unique_ptr<Setting> plain_setting() { return std::make_unique<PlainSetting>(); }

}  // namespace train_gpt
