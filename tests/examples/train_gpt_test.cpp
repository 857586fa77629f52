// The job of examples/train_gpt in one process.
#include "data.h"
#include "options.h"
#include "train.h"
#include "train_gpt_support.h"

#include <torch/types.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cmath>
#include <vector>

using namespace train_gpt;
using train_gpt_test::largest_difference;
using train_gpt_test::small_job;

namespace {

std::optional<int> read(std::vector<const char*> arguments, TrainOptions& options) {
  arguments.insert(arguments.begin(), "train_gpt");
  return read_options(static_cast<int>(arguments.size()), const_cast<char**>(arguments.data()), options);
}

}  // namespace

TEST_CASE("a batch is a function of seed and step, and targets are the next bytes") {
  const Text text(small_job().text);
  const Batch batch = text.batch(3, 16, 7, 2);
  CHECK(batch.inputs.sizes() == at::IntArrayRef({3, 16}));
  CHECK(batch.inputs.scalar_type() == torch::kLong);
  CHECK(at::equal(batch.inputs.narrow(1, 1, 15), batch.targets.narrow(1, 0, 15)));
  CHECK(at::equal(batch.inputs, text.batch(3, 16, 7, 2).inputs));
  CHECK_FALSE(at::equal(batch.inputs, text.batch(3, 16, 7, 3).inputs));
  CHECK_FALSE(at::equal(batch.inputs, text.batch(3, 16, 8, 2).inputs));
  CHECK_THROWS(text.batch(1, text.size(), 1, 1));
  CHECK_THROWS(Text("no/such/text"));
}

TEST_CASE("the job learns") {
  TrainOptions options = small_job();
  options.steps = 60;
  options.dtype = "float32";
  std::vector<std::int64_t> steps;
  const TrainResult result =
      train(options, *plain_setting(), [&](const StepReport& report) { steps.push_back(report.step); });
  CHECK(std::abs(result.losses.front() - std::log(256.0)) < 0.5);
  CHECK(result.losses.back() < 3.5);
  CHECK(steps.size() == 60);
  CHECK(steps.back() == 60);
  CHECK(result.parameters.at("blocks.0.attn.wq.weight").numel() == options.hidden * options.hidden);
}

TEST_CASE("a job repeats itself exactly, its sampled text too") {
  TrainOptions options = small_job();
  options.sample = 20;
  options.dropout = 0.1;
  options.attention_bias = true;
  options.vocabulary = 257;
  options.steps = 3;
  const TrainResult first = train(options, *plain_setting());
  const TrainResult second = train(options, *plain_setting());
  CHECK(first.losses == second.losses);
  CHECK(first.sample == second.sample);
  CHECK(first.sample.size() == 20);
}

TEST_CASE("micro-batches add up to the undivided batch, also when they are uneven") {
  TrainOptions options = small_job();
  options.steps = 5;
  const TrainResult undivided = train(options, *plain_setting());
  options.accumulate = GENERATE(2, 3, 8);
  const TrainResult divided = train(options, *plain_setting());
  for (std::size_t i = 0; i < undivided.losses.size(); ++i) {
    CHECK(std::abs(undivided.losses[i] - divided.losses[i]) < 1e-10);
  }
  CHECK(largest_difference(undivided, divided) < 1e-9);
}

TEST_CASE("the command line fills the options") {
  TrainOptions options;
  CHECK_FALSE(read(
      {"--plain", "--text", __FILE__, "--steps", "5", "--vocabulary", "257", "--dtype", "float64"}, options));
  CHECK(options.steps == 5);
  CHECK(options.vocabulary == 257);
  CHECK(options.dtype == "float64");
}

TEST_CASE("wrong command lines are refused") {
  const auto wrong =
      GENERATE(std::vector<const char*>{"--text", __FILE__},                                    //
               std::vector<const char*>{"--plain", "--plan", __FILE__, "--text", __FILE__},     //
               std::vector<const char*>{"--plain", "--text", "no/such/text"},                   //
               std::vector<const char*>{"--plain", "--text", __FILE__, "--hidden", "10"},       //
               std::vector<const char*>{"--plain", "--text", __FILE__, "--accumulate", "17"},   //
               std::vector<const char*>{"--plain", "--text", __FILE__, "--vocabulary", "255"},  //
               std::vector<const char*>{"--plain", "--text", __FILE__, "--dtype", "int8"});
  TrainOptions options;
  const auto exit_code = read(wrong, options);
  REQUIRE(exit_code);
  CHECK(*exit_code != 0);
}
