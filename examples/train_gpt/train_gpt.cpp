// Trains a GPT in one process (--plain) or, under a launcher, on ranks (--plan FILE). See README.md.
#include "distributed.h"
#include "log.h"
#include "options.h"
#include "save.h"
#include "train.h"

#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>
#include <memory>

namespace {

using namespace train_gpt;

// The whole job of one rank. Only the first writes.
void run(TrainOptions options, Setting& setting) {
  options.collect_parameters = !options.save.empty();
  const bool writes = setting.is_first_rank();
  JsonLog log(writes ? options.log : "");
  Progress progress(options.steps);
  const TrainResult result = train(options, setting, [&](const StepReport& report) {
    log.write(report);
    if (writes) progress.show(report);
  });
  if (writes && !options.save.empty()) save_parameters(options.save, result.parameters);
  if (writes && !result.sample.empty()) std::printf("\n%s\n", result.sample.c_str());
}

int run_plain(const TrainOptions& options) {
  try {
    run(options, *plain_setting());
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TrainOptions options;
  if (const auto exit_code = read_options(argc, argv, options)) return *exit_code;
  at::set_num_threads(options.threads);
  if (options.plain) return run_plain(options);
  return run_rank(
      options.plan, [&](Setting& setting) { run(options, setting); }, say,
      {options.backend, std::chrono::seconds(options.timeout)});
}
