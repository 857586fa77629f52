#include "log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>

namespace train_gpt {
namespace {

constexpr std::int64_t lines_of_a_run = 30;

std::string bytes_text(const BytesByDim& bytes) {
  std::string text;
  for (const auto& [dim, count] : bytes)
    text += fmt::format("  {} {:.2f} MB", dim, static_cast<double>(count) / 1e6);
  return text;
}

std::string line(const StepReport& report, std::int64_t steps, double seconds_left) {
  const auto seconds = static_cast<std::int64_t>(seconds_left);
  return fmt::format("step {:>{}}/{}  loss {:.4f}  {:.0f} tokens/s{}  {}:{:02} left", report.step,
                     std::to_string(steps).size(), steps, report.loss, report.tokens_per_second,
                     bytes_text(report.bytes), seconds / 60, seconds % 60);
}

}  // namespace

Progress::Progress(std::int64_t steps)
    : steps_(steps), terminal_(isatty(STDOUT_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

void Progress::show(const StepReport& report) {
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
  const double left =
      spent.count() / static_cast<double>(report.step) * static_cast<double>(steps_ - report.step);
  const bool last = report.step == steps_;
  if (terminal_) {
    fmt::print("\r{}\033[K{}", line(report, steps_, left), last ? "\n" : "");
    std::fflush(stdout);
  } else if (last || report.step == 1 || report.step % (steps_ / lines_of_a_run + 1) == 0) {
    say(line(report, steps_, left));
  }
}

JsonLog::JsonLog(const std::string& path) {
  if (path.empty()) return;
  file_.open(path);
  if (!file_) throw std::runtime_error("cannot write the log " + path);
}

void JsonLog::write(const StepReport& report) {
  if (!file_.is_open()) return;
  const nlohmann::ordered_json line{{"step", report.step},
                                    {"loss", report.loss},
                                    {"at", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
                                    {"step_ms", report.milliseconds},
                                    {"tokens_per_s", report.tokens_per_second},
                                    {"bytes", report.bytes}};
  file_ << line.dump() << std::endl;  // flushed, so that a run can be watched
}

void say(const std::string& text) { spdlog::info(text); }

}  // namespace train_gpt
