// What a job tells: a progress line for people, JSON lines for programs.
#pragma once

#include "train.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

namespace train_gpt {

// One line that is written over on a terminal; else a line every few steps.
class Progress {
 public:
  explicit Progress(std::int64_t steps);
  void show(const StepReport& report);

 private:
  std::int64_t steps_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
};

// One JSON object a step: step, loss, step_ms, tokens_per_s, bytes (an object: mesh dimension -> bytes received).
class JsonLog {
 public:
  // An empty path writes nothing. Errors: std::runtime_error when the file cannot be written.
  explicit JsonLog(const std::string& path);
  void write(const StepReport& report);

 private:
  std::ofstream file_;
};

// A line with the time.
void say(const std::string& text);

}  // namespace train_gpt
