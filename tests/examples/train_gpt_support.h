// A job small enough for a test.
#pragma once

#include "train.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

namespace train_gpt_test {

inline std::filesystem::path project() { return std::filesystem::path(__FILE__).parent_path() / "../.."; }

// In float64, on a text of this project, without sampling.
inline train_gpt::TrainOptions small_job() {
  train_gpt::TrainOptions options;
  options.text = (project() / "docs/plan-format.md").string();
  options.steps = 20;
  options.batch = 8;
  options.sequence = 16;
  options.hidden = 32;
  options.layers = 2;
  options.heads = 4;
  options.dtype = "float64";
  options.sample = 0;
  options.collect_parameters = true;
  return options;
}

// Over all parameters; infinite when the names differ.
inline double largest_difference(const train_gpt::TrainResult& a, const train_gpt::TrainResult& b) {
  if (a.parameters.empty() || a.parameters.size() != b.parameters.size()) return HUGE_VAL;
  double largest = 0;
  for (const auto& [name, value] : a.parameters) {
    const auto other = b.parameters.find(name);
    if (other == b.parameters.end()) return HUGE_VAL;
    largest = std::max(largest, (value - other->second).abs().max().item<double>());
  }
  return largest;
}

}  // namespace train_gpt_test
