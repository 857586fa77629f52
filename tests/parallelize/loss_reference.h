// What the losses mean, written down on plain tensors and without any of the library's code.
#pragma once

#include <parallelize/all.h>
#include <support/check.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace dtensor::testing {

// logits [..., v], target [...]
inline at::Tensor reference_loss(const at::Tensor& logits, const at::Tensor& target,
                                 const CrossEntropyOptions& options) {
  const auto classes = options.classes.value_or(logits.size(-1));
  const auto x = logits.narrow(-1, 0, classes);
  const auto weight = options.weight.defined() ? options.weight : at::ones({classes}, x.options());
  const auto valid = target.ne(options.ignore_index);
  const auto safe = target.masked_fill(valid.logical_not(), 0);
  const auto log_probabilities = x.log_softmax(-1);
  const auto row_weight = weight.index({safe}) * valid;
  // How much probability each class is to have.
  const double e = options.label_smoothing, k = static_cast<double>(classes);
  const auto one_hot = at::zeros_like(x.detach()).scatter(-1, safe.unsqueeze(-1), 1);
  const auto wanted =
      options.smoothing == LabelSmoothing::pytorch || classes == 1
          ? one_hot * (classes == 1 && options.smoothing == LabelSmoothing::megatron ? 1 : 1 - e) +
                (classes == 1 && options.smoothing == LabelSmoothing::megatron ? 0 : e / k)
          : one_hot * (1 - e) + (1 - one_hot) * (e / (k - 1));
  auto losses = -(wanted * log_probabilities * weight).sum(-1) * valid;
  losses = losses + options.z_loss * x.logsumexp(-1).square() * row_weight;
  if (options.reduction == LossReduction::none) return losses;
  return options.reduction == LossReduction::sum ? losses.sum() : losses.sum() / row_weight.sum();
}

// Every class is somebody's target, the last ones first; every fourth row is ignored.
inline at::Tensor targets(const std::vector<std::int64_t>& rows, std::int64_t classes,
                          std::int64_t ignore_index = -100) {
  const auto count = c10::multiply_integers(rows);
  const auto target = (classes - 1) - at::arange(count) % classes;
  return (count > 1 ? target.masked_fill((at::arange(count) % 4).eq(1), ignore_index) : target).view(rows);
}

// A number from a loss, so that rows count differently.
inline at::Tensor as_number(const at::Tensor& loss) {
  if (loss.dim() == 0) return loss;
  const auto factors = values(loss.sizes(), 7);
  return is_dtensor(loss) ? (loss * place(factors, DTensor(loss).mesh(), DTensor(loss).placements())).sum()
                          : (loss * factors).sum();
}

inline at::Tensor placed(const at::Tensor& value, const DeviceMesh& mesh, const Placements& placements) {
  return value.defined() ? at::Tensor(place(value, mesh, placements)) : value;
}

// Bytes that the calling thread has allocated beyond what it had when this began: the most at any time.
class PeakMemory {
 public:
  PeakMemory() : report_(std::make_shared<Report>()), guard_(c10::DebugInfoKind::PROFILER_STATE, report_) {}
  std::int64_t peak() const { return report_->peak; }
  void reset() { report_->peak = report_->now = 0; }

 private:
  struct Report : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Report> report_;
  c10::DebugInfoGuard guard_;
};

}  // namespace dtensor::testing
