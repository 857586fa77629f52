// The bad-plan suite: bad_plans/*.json. Each file holds
//
//   "about"  what is wrong       "model"  a file of bad_plans/models     "world"  ranks
//   the plan: "plan", an object; or "text", as it is; or "valid", a file of bad_plans/valid, and "patch" (RFC 6902)
//   "facts"  {"heads": {PATTERN: COUNT}, "kv_heads": {...}, "sequence": N, "batch": N}
//   "other_rank_patch"  what rank 1's plan has otherwise
//   "faults"  [{"kind", "rule", "module", "says"}]: exactly these must come back; none for odd_*.json, which are valid
#include <parallelize/all.h>
#include <support/check.h>
#include <support/launch.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

fs::path folder() { return fs::path(__FILE__).parent_path() / "bad_plans"; }

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw std::runtime_error("cannot read " + path.string());
  return text.str();
}

struct Case {
  std::string name;
  ordered_json file;

  std::string plan() const {
    if (file.contains("text")) return file.at("text");
    return document().dump(2);
  }
  std::string plan_of_rank(int rank) const {
    if (rank != 1 || !file.contains("other_rank_patch")) return plan();
    return document().patch(file.at("other_rank_patch")).dump(2);
  }
  fs::path model() const { return folder() / "models" / (file.at("model").get<std::string>() + ".json"); }
  ModelFacts facts() const {
    ModelFacts facts;
    const auto given = file.value("facts", ordered_json::object());
    const auto counts = [&](const char* key, std::vector<std::pair<std::string, std::int64_t>>& list) {
      if (!given.contains(key)) return;
      for (const auto& item : given.at(key).items()) list.emplace_back(item.key(), item.value());
    };
    counts("heads", facts.heads);
    counts("kv_heads", facts.kv_heads);
    if (given.contains("sequence")) facts.sequence = given.at("sequence").get<std::int64_t>();
    if (given.contains("batch")) facts.batch = given.at("batch").get<std::int64_t>();
    return facts;
  }
  int world() const { return file.at("world"); }
  bool expects(const std::set<std::string>& kinds) const {
    const auto& faults = file.at("faults");
    return std::any_of(faults.begin(), faults.end(),
                       [&](const auto& fault) { return kinds.count(fault.at("kind")) > 0; });
  }

 private:
  ordered_json document() const {
    if (!file.contains("valid")) return file.at("plan");
    const auto valid =
        ordered_json::parse(read(folder() / "valid" / (file.at("valid").get<std::string>() + ".json")));
    return valid.patch(file.at("patch"));
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& entry : fs::directory_iterator(folder()))
    if (entry.path().extension() == ".json")
      all.push_back({entry.path().stem().string(), ordered_json::parse(read(entry.path()))});
  std::sort(all.begin(), all.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return all;
}

std::string line_of(const std::string& kind, std::size_t rule, const std::string& module) {
  return kind + (rule ? " rule " + std::to_string(rule) : "") + (module.empty() ? "" : " module " + module);
}

// "" when exactly the expected faults came, else what is missing and what is too much.
std::string compare(const Case& plan, const std::vector<PlanFault>& faults) {
  std::string text;
  std::vector<bool> taken(faults.size(), false);
  for (const auto& wanted : plan.file.at("faults")) {
    const auto line =
        line_of(wanted.at("kind"), wanted.value("rule", std::size_t{0}), wanted.value("module", ""));
    bool found = false;
    for (std::size_t i = 0; i < faults.size() && !found; ++i) {
      if (taken[i] || line != line_of(to_string(faults[i].kind), faults[i].rule ? *faults[i].rule + 1 : 0,
                                      faults[i].module))
        continue;
      found = taken[i] = true;
      if (const auto says = wanted.value("says", ""); faults[i].text.find(says) == std::string::npos)
        text += "  not said: " + says + "\n  in: " + faults[i].text + "\n";
    }
    if (!found) text += "  missing: " + line + "\n";
  }
  for (std::size_t i = 0; i < faults.size(); ++i)
    if (!taken[i])
      text += "  extra: " +
              line_of(to_string(faults[i].kind), faults[i].rule ? *faults[i].rule + 1 : 0, faults[i].module) +
              "\n    " + faults[i].text + "\n";
  return text;
}

// A module as a model file describes it. Parts that are not stock are modules with parameters and no forward.
struct Container : torch::nn::Module {};

std::shared_ptr<torch::nn::Module> made(const DescribedModule& entry, const ModuleDescription& model) {
  const auto sizes = entry.weight ? model.tensors[*entry.weight].sizes : std::vector<std::int64_t>{};
  switch (entry.kind) {
    case ModuleKind::linear:
      return torch::nn::Linear(torch::nn::LinearOptions(sizes[1], sizes[0]).bias(entry.bias.has_value()))
          .ptr();
    case ModuleKind::embedding:
      return torch::nn::Embedding(sizes[0], sizes[1]).ptr();
    case ModuleKind::norm: {
      auto norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes[0]}));
      return norm.ptr();
    }
    case ModuleKind::no_parameters:
      return torch::nn::Dropout().ptr();
    case ModuleKind::other:
      return std::make_shared<Container>();
  }
  return nullptr;
}

std::shared_ptr<torch::nn::Module> build(const fs::path& file) {
  static std::mutex mutex;  // LibTorch's generator belongs to the process
  const std::lock_guard lock(mutex);
  const auto model = describe_file(file.string());
  auto root = std::make_shared<Container>();
  std::map<std::string, std::shared_ptr<torch::nn::Module>> by_path{{"", root}};
  for (const auto& entry : model.modules) {
    const auto dot = entry.path.rfind('.');
    const auto parent = dot == std::string::npos ? "" : entry.path.substr(0, dot);
    const auto name = dot == std::string::npos ? entry.path : entry.path.substr(dot + 1);
    if (entry.type == "Sequential") {
      torch::nn::Sequential sequential;
      by_path[entry.path] = by_path[parent]->register_module(name, sequential.ptr());
    } else if (auto* sequential = by_path[parent]->as<torch::nn::SequentialImpl>()) {
      const auto child = made(entry, model);
      if (auto linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(child))
        sequential->push_back(name, linear);
      else if (auto norm = std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(child))
        sequential->push_back(name, norm);
      else
        sequential->push_back(name, torch::nn::Dropout().ptr());
    } else {
      by_path[entry.path] = by_path[parent]->register_module(name, made(entry, model));
    }
  }
  auto parameters = root->named_parameters();
  for (const auto& tensor : model.tensors) {
    for (const auto& alias : tensor.aliases) parameters[alias].set_data(parameters[tensor.name]);
    if (parameters.contains(tensor.name)) continue;
    const auto dot = tensor.name.rfind('.');
    by_path.at(tensor.name.substr(0, dot))
        ->register_parameter(tensor.name.substr(dot + 1), at::zeros(tensor.sizes));
  }
  return root;
}

}  // namespace

TEST_CASE("each bad plan brings exactly its faults") {
  std::map<std::string, int> of_kind;
  int bad = 0, valid = 0, mutated = 0, several = 0;
  for (const auto& plan : cases()) {
    for (const auto& fault : plan.file.at("faults")) ++of_kind[fault.at("kind").get<std::string>()];
    (plan.name.starts_with("odd_") ? valid : bad) += 1;
    if (!plan.name.starts_with("odd_"))
      mutated += plan.file.contains("patch") || plan.file.contains("other_rank_patch");
    several += plan.file.at("faults").size() > 1;
    if (plan.expects({"ranks_differ"})) continue;  // needs ranks: below
    const auto text = plan.plan();
    INFO(plan.name << ": " << plan.file.at("about") << "\n" << text);
    const auto difference =
        compare(plan, check_plan(text, describe_file(plan.model().string()), plan.world(), plan.facts()));
    INFO(difference);
    CHECK(difference.empty());
  }
  CHECK(bad >= 60);
  CHECK(valid >= 5);
  CHECK(2 * mutated >= bad);
  CHECK(several >= 5);
  for (int kind = 0; kind <= static_cast<int>(FaultKind::ranks_differ); ++kind) {
    const std::string name = to_string(static_cast<FaultKind>(kind));
    INFO(name);
    if (static_cast<FaultKind>(kind) != FaultKind::applied_twice)
      CHECK(of_kind[name] >= 3);  // no plan is at fault
  }
}

TEST_CASE("the suite can fail: a missing and an extra fault are both told") {
  for (const auto& plan : cases()) {
    if (plan.file.at("faults").empty() || plan.expects({"ranks_differ"})) continue;
    auto faults = check_plan(plan.plan(), describe_file(plan.model().string()), plan.world(), plan.facts());
    auto extra = faults;
    extra.push_back({});
    CHECK(compare(plan, extra).find("extra: value") != std::string::npos);
    faults.pop_back();
    CHECK(compare(plan, faults).find("missing: ") != std::string::npos);
  }
}

TEST_CASE("the valid plans that the bad ones are made from have no faults") {
  for (const auto& entry : fs::directory_iterator(folder() / "valid")) {
    const auto name = entry.path().stem().string();
    const auto model = name.substr(0, name.find('_')) + ".json";
    INFO(name);
    for (const int world : {2, 4}) {
      const auto text = read(entry.path());
      if (text.find("\"shape\": [4]") != std::string::npos && world == 2) continue;
      if (text.find("\"shape\": [2, 2]") != std::string::npos && world == 2) continue;
      const auto faults = check_plan(text, describe_file((folder() / "models" / model).string()), world);
      for (const auto& fault : faults) FAIL_CHECK(fault.text);
    }
  }
}

TEST_CASE(
    "a bad plan is refused by every rank without communication or change, and ranks that differ are told") {
  // Faults of the text are from_json's; a world that does not fit is make_mesh's; large meshes are for the check alone.
  const std::set<std::string> not_here{"syntax", "key", "style", "value", "mesh"};
  int applied = 0;
  for (const auto& plan : cases()) {
    if (plan.expects(not_here) || plan.world() > 6) continue;
    ++applied;
    INFO(plan.name);
    const auto wanted = plan.file.at("faults").size();
    CHECK_NOTHROW(run_ranks(plan.world(), [&](int rank) {
      const auto read_plan = ParallelPlan::from_json(plan.plan_of_rank(rank));
      const auto mesh = read_plan.mesh ? make_mesh(read_plan, World::current())
                                       : line(plan.world(), read_plan.tensor_parallel_dims[0]);
      const auto module = build(plan.model());
      const auto facts = plan.facts();
      const CollectiveCounter counter;
      try {
        parallelize_module(*module, mesh, read_plan,
                           {.heads = facts.heads,
                            .kv_heads = facts.kv_heads,
                            .sequence = facts.sequence,
                            .batch = facts.batch});
      } catch (const PlanError& error) {
        check(error.faults().size() == wanted, plan.name + ": " + error.what());
        check(counter.total() == 0 || plan.expects({"ranks_differ"}), "communication");
        for (const auto& p : module->parameters()) check(!is_dtensor(p), "a parameter was changed");
        if (plan.expects({"ranks_differ"}))
          check_contains(error.faults()[0], plan.file.at("faults")[0].at("says").get<std::string>());
        return;
      }
      check(wanted == 0, plan.name + " was applied");
      for (const auto& p : module->parameters()) check(is_dtensor(p), "a parameter stayed plain");
    }));
  }
  CHECK(applied >= 30);
}

TEST_CASE("dtensor-plan tells the same, with exit code 2") {
  const auto program = program_folder() + "/dtensor-plan";
  if (!fs::exists(program)) SKIP("built without the command-line programs");
  const auto place = fs::temp_directory_path() / ("dtensor_plan_test_" + std::to_string(::getpid()));
  fs::create_directory(place);
  const auto plan_file = (place / "plan.json").string();
  const std::set<std::string> chosen{"key_1",      "heads_2",   "kv_heads_3", "batch_1",
                                     "sequence_2", "several_1", "odd_1",      "syntax_1"};
  for (const auto& plan : cases()) {
    if (!chosen.count(plan.name)) continue;
    std::ofstream(plan_file) << plan.plan();
    const auto facts = plan.facts();
    std::string options;
    for (const auto& [pattern, count] : facts.heads)
      options += fmt::format(" --heads '{}={}'", pattern, count);
    for (const auto& [pattern, count] : facts.kv_heads)
      options += fmt::format(" --kv-heads '{}={}'", pattern, count);
    if (facts.sequence) options += fmt::format(" --sequence {}", *facts.sequence);
    if (facts.batch) options += fmt::format(" --batch {}", *facts.batch);
    const auto outcome = run_command(fmt::format("{} check {} --model {} --world {} --json{}", program,
                                                 plan_file, plan.model().string(), plan.world(), options));
    INFO(plan.name << "\n" << outcome.text);
    const auto& wanted = plan.file.at("faults");
    CHECK(outcome.exit_code == (wanted.empty() ? 0 : 2));
    CHECK(ordered_json::parse(outcome.text).at("faults").size() == wanted.size());
  }
  const auto valid = [&](const char* name) { return (folder() / "valid" / name).string(); };
  const auto explained =
      run_command(program + " explain " + valid("packed.json") + " --world 4 --rank 3 --json --model " +
                  (folder() / "models/packed.json").string());
  INFO(explained.text);
  REQUIRE(explained.exit_code == 0);
  const auto report = ordered_json::parse(explained.text);
  const auto& qkv = report.at("tensors").at(2);
  CHECK(qkv.at("name") == "blocks.0.attn.qkv.weight");
  CHECK(qkv.at("placements") == ordered_json{"Interleaved(0, [16, 8, 8])"});
  CHECK(qkv.at("local_sizes") == ordered_json{8, 16});
  // The header of a safetensors file is all that is read.
  const std::string header =
      R"j({"__metadata__": {"format": "pt"}, "model.layers.0.mlp.up_proj.weight": {"dtype": "BF16", "shape": [24, 16],)j"
      R"j( "data_offsets": [0, 768]}})j";
  {
    std::ofstream file(place / "m.safetensors", std::ios::binary);
    for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i) & 0xff));
    file << header;
  }
  std::ofstream(plan_file) << R"j({"model.layers.*.mlp.up_proj": "colwise"})j";
  const auto tensors = run_command(program + " explain " + plan_file + " --world 3 --model " +
                                   (place / "m.safetensors").string());
  INFO(tensors.text);
  CHECK(tensors.exit_code == 0);
  CHECK(tensors.text.find("256 bytes of 768 on this rank") != std::string::npos);
  CHECK(run_command(program + " check " + plan_file + " --world 3 --model " + (place / "none.json").string())
            .exit_code == 1);
  fs::remove_all(place);
}
