// dtensor-plan: checks and explains a plan without the program it is for.
//
//   dtensor-plan check plan.json --model names.json --world 4
//   dtensor-plan explain plan.json --model model.safetensors --world 4 --rank 1
//
// The model is a .safetensors file (its header is read) or JSON of names and sizes (parallelize/model_file.h).
// Exit code: 0 without faults, 2 with faults, 1 when a file cannot be read.
#include "parallelize/explain_plan.h"
#include "parallelize/model_file.h"
#include "parallelize/plan_check.h"
#include "placements/error.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using dtensor::PlanFault;

struct Options {
  std::string plan, model;
  std::int64_t world = 1, rank = 0;
  std::vector<std::string> heads, kv_heads;  // PATTERN=COUNT
  std::int64_t sequence = 0, batch = 0;      // 0: not said
  bool json = false;
};

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw std::runtime_error("cannot read the plan file " + path);
  return text.str();
}

std::vector<std::pair<std::string, std::int64_t>> counts(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::int64_t>> result;
  for (const auto& text : texts) {
    const auto equals = text.rfind('=');
    std::size_t used = 0;
    std::int64_t count = 0;
    try {
      if (equals != std::string::npos) count = std::stoll(text.substr(equals + 1), &used);
    } catch (const std::logic_error&) {
    }
    if (count < 1 || used != text.size() - equals - 1)
      throw std::runtime_error("'" + text + "' is not PATTERN=COUNT, such as 'blocks.*.attn.{wq,wk,wv}=32'");
    result.emplace_back(text.substr(0, equals), count);
  }
  return result;
}

dtensor::ModelFacts facts_of(const Options& options) {
  dtensor::ModelFacts facts{counts(options.heads), counts(options.kv_heads), {}, {}};
  if (options.sequence > 0) facts.sequence = options.sequence;
  if (options.batch > 0) facts.batch = options.batch;
  return facts;
}

void tell(const std::vector<PlanFault>& faults, const Options& options) {
  if (options.json) {
    const nlohmann::ordered_json report{{"plan", options.plan},
                                        {"world", options.world},
                                        {"faults", nlohmann::ordered_json::parse(dtensor::to_json(faults))}};
    std::cout << report.dump(2) << "\n";
    return;
  }
  for (const auto& fault : faults) std::cout << "[" << to_string(fault.kind) << "] " << fault.text << "\n";
  if (faults.empty())
    std::cout << options.plan << ": no faults on " << options.world << " ranks\n";
  else
    std::cout << options.plan << ": " << faults.size() << (faults.size() == 1 ? " fault" : " faults")
              << " on " << options.world << " ranks\n";
}

int run(const Options& options, bool explain) {
  const auto text = read(options.plan);
  const auto module = dtensor::describe_file(options.model);
  const auto faults = dtensor::check_plan(text, module, options.world, facts_of(options));
  if (!explain || !faults.empty()) {
    tell(faults, options);
    return faults.empty() ? 0 : 2;
  }
  const auto plan = dtensor::ParallelPlan::from_json(text);
  const auto report =
      dtensor::explain_plan(plan, module, dtensor::mesh_of_plan(plan, options.world), options.rank);
  std::cout << (options.json ? report.to_json() + "\n" : report.to_string());
  return 0;
}

}  // namespace

int main(int argument_count, char** arguments) {
  Options options;
  CLI::App app("Checks and explains a parallel plan without its program.", "dtensor-plan");
  app.require_subcommand(1);
  auto* check = app.add_subcommand(
      "check", "Lists everything that is wrong with the plan; exit code 2 if something is");
  auto* explain = app.add_subcommand("explain", "Shows what becomes of each tensor on one rank");
  for (auto* command : {check, explain}) {
    command->add_option("plan", options.plan, "The plan, JSON")->required();
    command->add_option("--model", options.model, "Names and sizes: a .safetensors file, or JSON")
        ->required();
    command->add_option("--world", options.world, "Number of ranks")
        ->required()
        ->check(CLI::Range(1, 1 << 24));
    command->add_option("--heads", options.heads, "PATTERN=COUNT: attention heads of the modules that match");
    command->add_option("--kv-heads", options.kv_heads, "PATTERN=COUNT: key-value heads");
    command->add_option("--sequence", options.sequence, "Sequence length")->check(CLI::PositiveNumber);
    command->add_option("--batch", options.batch, "Global batch size")->check(CLI::PositiveNumber);
    command->add_flag("--json", options.json, "Write JSON");
  }
  explain->add_option("--rank", options.rank, "Whose part to show")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argument_count, arguments);
  try {
    return run(options, explain->parsed());
  } catch (const dtensor::Error& error) {
    std::cerr << "dtensor-plan: " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "dtensor-plan: " << error.what() << "\n";
  }
  return 1;
}
