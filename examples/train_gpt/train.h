// The training job, the same in every setting.
#pragma once

#include "options.h"
#include "setting.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace train_gpt {

struct StepReport {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean over the global batch, before the step
  double milliseconds = 0;
  double tokens_per_second = 0;  // of all ranks together
  BytesByDim bytes;              // received by this rank in this step
};

struct TrainResult {
  std::vector<double> losses;                    // one a step
  std::map<std::string, at::Tensor> parameters;  // plain and whole; empty unless options.collect_parameters
  std::string sample;
};

// Trains and then samples. Every rank calls it with the same options. `on_step` is called on every rank.
TrainResult train(const TrainOptions& options, Setting& setting,
                  const std::function<void(const StepReport&)>& on_step = {});

}  // namespace train_gpt
