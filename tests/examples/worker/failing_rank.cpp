// The main job, in which one rank fails in the middle of a step. usage: failing_rank PLAN TEXT (killed|stopped|left)
#include "distributed.h"
#include "train.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <chrono>
#include <string>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;

namespace {

constexpr int failing_rank = 2;
constexpr std::int64_t failing_step = 4;

[[noreturn]] void fail(const std::string& how) {
  if (how == "left") std::_Exit(0);  // without a word to anybody
  std::raise(how == "killed" ? SIGKILL : SIGSTOP);
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  train_gpt::TrainOptions options;
  options.text = argv[2];
  options.steps = 100000;
  options.batch = 8;
  options.sequence = 32;
  options.hidden = 32;
  options.sample = 0;
  const std::string how = argv[3];
  const char* rank = std::getenv("RANK");
  const bool fails = rank && std::stoi(rank) == failing_rank;
  const auto on_step = [&](const train_gpt::StepReport& report) {
    if (!fails || report.step != failing_step) return;
    // Within the next step, wherever it is by then.
    const auto half_a_step = std::chrono::duration<double, std::milli>(report.milliseconds / 2);
    std::thread([how, half_a_step] {
      std::this_thread::sleep_for(half_a_step);
      fail(how);
    }).detach();
  };
  return train_gpt::run_rank(
      argv[1], [&](train_gpt::Setting& setting) { train_gpt::train(options, setting, on_step); }, {}, {.timeout = 10s});
}
