// The main job as four processes over Gloo: against plain LibTorch, under each launcher that is here, and how it ends when
// a rank fails in the middle of a step.
#include "train.h"
#include "train_gpt_support.h"

#include <support/launch.h>

#include <torch/csrc/jit/serialization/pickle.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using Catch::Matchers::ContainsSubstring;
using train_gpt_test::project;
namespace fs = std::filesystem;

namespace {

// Of this process alone: tests may run beside each other.
fs::path scratch(const std::string& name) {
  const auto folder = fs::temp_directory_path() / ("dtensor_train_gpt_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  return folder / name;
}

std::string program(const std::string& name) { return dtensor::testing::program_folder() + "/" + name; }
std::string plan(const std::string& name) { return (project() / "examples/plans" / name).lexically_normal().string(); }

// The options of small_job() on the command line, writing losses and parameters to files.
std::string arguments(const train_gpt::TrainOptions& options, const std::string& plan_file) {
  return program("train_gpt") + " --plan " + plan_file + " --text " + options.text + " --steps " +
         std::to_string(options.steps) + " --batch " + std::to_string(options.batch) + " --sequence " +
         std::to_string(options.sequence) + " --hidden " + std::to_string(options.hidden) + " --layers " +
         std::to_string(options.layers) + " --heads " + std::to_string(options.heads) + " --dtype " + options.dtype +
         " --sample 0 --log " + scratch("log").string() + " --save " + scratch("parameters").string();
}

train_gpt::TrainResult written() {
  train_gpt::TrainResult result;
  std::ifstream log(scratch("log"));
  for (std::string line; std::getline(log, line);)
    result.losses.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  std::ifstream file(scratch("parameters"), std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict())
    result.parameters[entry.key().toStringRef()] = entry.value().toTensor();
  return result;
}

void check_equal(const train_gpt::TrainResult& result, const train_gpt::TrainResult& plain) {
  REQUIRE(result.losses.size() == plain.losses.size());
  for (std::size_t step = 0; step < plain.losses.size(); ++step)
    CHECK(std::abs(result.losses[step] - plain.losses[step]) < 1e-9 * std::abs(plain.losses[step]));
  CHECK(train_gpt_test::largest_difference(result, plain) < 1e-9);
}

}  // namespace

TEST_CASE("20 steps of four processes equal plain LibTorch") {
  const auto options = train_gpt_test::small_job();
  const auto plain = train_gpt::train(options, *train_gpt::plain_setting());
  for (const char* name : {"gpt_tp.json", "gpt_tp_sp.json", "gpt_2d.json", "gpt_2d_sp.json"}) {
    INFO(name);
    const auto outcome = dtensor::testing::launch("-n 4 -- " + arguments(options, plan(name)));
    INFO(outcome.text);
    REQUIRE(outcome.exit_code == 0);
    check_equal(written(), plain);
  }
}

TEST_CASE("other launchers start the job") {
  const std::string launcher = GENERATE("torchrun", "mpirun");
  auto options = train_gpt_test::small_job();
  options.steps = 3;
  std::string command;
  if (launcher == "torchrun") {  // comes with the wheel that LibTorch is from
    const auto torchrun = project() / ".venv/bin/torchrun";
    if (!fs::exists(torchrun)) SKIP("no torchrun here");
    command = torchrun.string() + " --standalone --no-python --nproc-per-node 2 -- ";
  } else {
    if (dtensor::testing::run_command("command -v mpirun").exit_code != 0) SKIP("no mpirun here");
    const auto port = std::to_string(20000 + ::getpid() % 10000);  // below the ports that systems hand out
    command = "mpirun --allow-run-as-root --oversubscribe -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=" + port + " -n 2 ";
  }
  const auto outcome = dtensor::testing::run_command(command + arguments(options, plan("gpt_tp.json")));
  INFO(outcome.text);
  REQUIRE(outcome.exit_code == 0);
  check_equal(written(), train_gpt::train(options, *train_gpt::plain_setting()));
}

TEST_CASE("a rank that fails in the middle of a step ends the job, and is named") {
  const std::string how = GENERATE("killed", "stopped", "left");
  const auto text = (project() / "docs/plan-format.md").string();
  const auto outcome = dtensor::testing::launch("-n 4 --grace 1 --last-words 20 -- " + program("failing_rank") + " " +
                                            plan("gpt_2d.json") + " " + text + " " + how);
  INFO(how << ":\n" << outcome.text);
  CHECK(outcome.exit_code != 0);
  CHECK(outcome.seconds < 45);  // 30 after the failure, which comes a few seconds after the start
  // Every survivor names operator, sequence number, group and, by itself or as another's note, the failed rank.
  for (const int rank : {0, 1, 3}) {
    const auto found = outcome.of_rank.find(rank);
    REQUIRE(found != outcome.of_rank.end());
    CHECK_THAT(found->second, ContainsSubstring(", sequence ") && ContainsSubstring("on group '") &&
                                  ContainsSubstring("rank 2"));
  }
  if (how == "killed") CHECK(outcome.exit_code == 128 + SIGKILL);
  if (how == "left")
    CHECK_THAT(outcome.launcher, ContainsSubstring("rank 2 ended first, with exit code 0"));
  else
    CHECK_THAT(outcome.launcher, ContainsSubstring("rank 2 failed first"));
}
