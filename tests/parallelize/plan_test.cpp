#include "parallelize/plan.h"

#include "parallelize/did_you_mean.h"
#include "parallelize/model_file.h"
#include "parallelize/plan_check.h"
#include "parallelize/plan_schema.h"
#include "placements/error.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace {

using namespace dtensor;
using Catch::Matchers::ContainsSubstring;

std::filesystem::path project() { return std::filesystem::path(__FILE__).parent_path() / "../.."; }

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> faults_of(const std::string& text) {
  try {
    ParallelPlan::from_json(text);
  } catch (const PlanError& error) {
    return error.faults();
  }
  return {};
}

// The one fault of a plan.
std::string fault_of(const std::string& text) {
  const std::vector<std::string> faults = faults_of(text);
  std::string all;
  for (const std::string& fault : faults) all += fault + "\n";
  INFO(text << "\n" << all);
  REQUIRE(faults.size() == 1);
  return faults[0];
}

std::string with_rule(const std::string& rule) {
  return R"j({"version": 1, "tensor_parallel": {"rules": [)j" + rule + "]}}";
}

std::string with_mesh(const std::string& mesh) { return R"j({"version": 1, "mesh": )j" + mesh + "}"; }

}  // namespace

TEST_CASE("styles have PyTorch's names and defaults") {
  const auto style = [](StyleKind kind, std::optional<Placement> output, std::int64_t sequence_dim) {
    Style result;
    result.kind = kind;
    result.output = output;
    result.sequence_dim = sequence_dim;
    return result;
  };
  CHECK(ColwiseParallel() == style(StyleKind::colwise, {}, 1));
  CHECK(RowwiseParallel({}, Shard(1)) == style(StyleKind::rowwise, Shard(1), 1));
  CHECK(SequenceParallel(0) == style(StyleKind::sequence_parallel, {}, 0));
}

TEST_CASE("a pattern's star is one path component") {
  CHECK(matches("tok", "tok"));
  CHECK_FALSE(matches("tok", "tokens"));
  CHECK_FALSE(matches("tok", "gpt.tok"));
  CHECK(matches("blocks.*.n1", "blocks.11.n1"));
  CHECK_FALSE(matches("blocks.*.n1", "blocks.0.attn.n1"));
  CHECK_FALSE(matches("blocks.*", "blocks"));
  CHECK_FALSE(matches("*", ""));
  CHECK(matches("layer*.w*1", "layer3.w1"));
  CHECK(matches("", ""));
  CHECK_FALSE(matches("blocks.*.w", "blocksX0.w"));
}

TEST_CASE("a pattern's two stars are any number of path components") {
  CHECK(matches("**.q_proj", "q_proj"));
  CHECK(matches("**.q_proj", "model.layers.0.self_attn.q_proj"));
  CHECK_FALSE(matches("**.q_proj", "model.eq_proj"));
  CHECK(matches("model.**", "model.layers.0"));
  CHECK_FALSE(matches("model.**", "model"));
  CHECK(matches("model.**.w", "model.w"));
  CHECK(matches("model.**.w", "model.a.b.w"));
  CHECK_FALSE(matches("model.**.w", "model.a.b.v"));
  CHECK(matches("**", "a.b"));
  CHECK_FALSE(matches("**", ""));
  CHECK(matches("**.{w1,w2}", "blocks.0.w2"));
  CHECK(matches("a**z", "a.b.z"));
}

TEST_CASE("a pattern's braces are alternatives") {
  CHECK(matches("blocks.*.attn.{wq,wk,wv}", "blocks.0.attn.wk"));
  CHECK_FALSE(matches("blocks.*.attn.{wq,wk,wv}", "blocks.0.attn.wo"));
  CHECK(matches("{attn.{wq,wo},mlp.w1}", "attn.wo"));
  CHECK(matches("{attn.{wq,wo},mlp.w1}", "mlp.w1"));
  CHECK_FALSE(matches("{attn.{wq,wo},mlp.w1}", "attn.w1"));
  CHECK(matches("norm{,2}", "norm"));
  CHECK(matches("{*.w,v}", "a.w"));
  CHECK_FALSE(matches("{*.w,v}", ".w"));
  for (const char* pattern : {"a.{b", "a}", "}{", "{a,{b}"}) {
    CHECK_THROWS_AS(matches(pattern, "a"), PlanError);
  }
}

TEST_CASE("a plan reads from JSON") {
  const ParallelPlan plan = ParallelPlan::from_json(R"j({
    "version": 1,
    "mesh": {"names": ["dp", "model"], "shape": [2, -1]},
    "tensor_parallel": {"dim": "model", "rules": [
      {"match": "blocks.*.attn.{wq,wk,wv}", "style": "colwise", "input": ["Shard(1)"]},
      {"match": "blocks.*.attn.wo", "style": "rowwise", "output": ["Shard(1)"]},
      {"match": "blocks.*.n1", "style": "sequence_parallel", "sequence_dim": 0},
      {"match": "head", "style": "colwise", "output": ["Replicate"]}]},
    "data_parallel": {"dim": "dp", "batch_dim": 1, "bucket_mb": 0.5, "reduce_dtype": "float32"},
    "policy": {"plain_tensors": "replicate_checked", "fallback": "error"}})j");
  ParallelPlan expected;
  expected.mesh = PlanMesh{{"dp", "model"}, {2, -1}};
  expected.tensor_parallel_dims = {"model"};
  expected.rules = {{"blocks.*.attn.{wq,wk,wv}", ColwiseParallel(Shard(1))},
                    {"blocks.*.attn.wo", RowwiseParallel({}, Shard(1))},
                    {"blocks.*.n1", SequenceParallel(0)},
                    {"head", ColwiseParallel({}, Replicate())}};
  expected.data_parallel = DataParallel{"dp", "replicate", 1, 0.5, "float32"};
  expected.policy = Policy{Fallback::error, ImplicitMoves::allow, PlainTensors::replicate_checked};
  CHECK(plan == expected);
  CHECK(ParallelPlan::from_json(plan.to_json()) == plan);
}

TEST_CASE("absent parts of a plan stay absent, absent keys get their defaults") {
  CHECK(ParallelPlan::from_json(R"j({"version": 1})j") == ParallelPlan{});
  CHECK(ParallelPlan::from_json(ParallelPlan{}.to_json()) == ParallelPlan{});
  const ParallelPlan plan = ParallelPlan::from_json(R"j({"version": 1, "data_parallel": {}, "policy": {}})j");
  CHECK(plan.data_parallel == DataParallel{});
  CHECK(plan.policy == Policy{});
  CHECK(ParallelPlan::from_json(plan.to_json()) == plan);
}

TEST_CASE("a plan made in code that the format refuses has no JSON") {
  ParallelPlan plan;
  plan.rules = {{"a.{b", ColwiseParallel()}};
  CHECK_THROWS_AS(plan.to_json(), PlanError);
  plan.rules = {{"n1", SequenceParallel()}};
  plan.rules[0].style.input = Shard(1);
  CHECK_THROWS_AS(plan.to_json(), PlanError);
  plan.rules = {{"w", ColwiseParallel(Interleaved(0, {4, 2, 2}), Partial())}};
  CHECK(ParallelPlan::from_json(plan.to_json()) == plan);
}

TEST_CASE("every style reads from JSON and back") {
  ParallelPlan plan;
  plan.rules = {{"a", ColwiseParallel(Shard(1), Replicate())},
                {"b", RowwiseParallel(Replicate(), Shard(1))},
                {"c", SequenceParallel(0)},
                {"d", ReplicateParallel(Shard(1), Shard(1))},
                {"e", PrepareModuleInput(Shard(1), Replicate())},
                {"f", PrepareModuleOutput({}, Shard(1))},
                {"g", PrepareModuleInputOutput(Shard(0), Replicate(), Replicate(), Shard(0))},
                {"h", PackedColwise({8, 4, 4}, Replicate())},
                {"i", PackedRowwise()},
                {"j", EmbeddingRowwise(Shard(1))},
                {"k", EmbeddingColwise(), true}};
  plan.rules[7].style.heads = 4;
  plan.rules[7].style.kv_heads = 2;
  plan.rules[0].style.kv_heads = 2;
  plan.rules[0].style.share_kv_heads = true;
  plan.uncovered = Uncovered::replicate;
  CHECK(ParallelPlan::from_json(plan.to_json()) == plan);
}

TEST_CASE("other libraries' names of styles") {
  const auto style = [](const std::string& name, const std::string& more = "") {
    return ParallelPlan::from_json(with_rule(R"j({"match": "a", "style": ")j" + name + "\"" + more + "}"))
        .rules[0]
        .style;
  };
  CHECK(style("colwise_rep") == ColwiseParallel({}, Replicate()));
  CHECK(style("colwise_gather_output") == ColwiseParallel({}, Replicate()));
  CHECK(style("colwise_rep", R"j(, "output": ["Shard(1)"])j") == ColwiseParallel({}, Shard(1)));
  CHECK(style("rowwise_rep") == RowwiseParallel(Replicate()));
  CHECK(style("rowwise_split_input") == RowwiseParallel(Replicate()));
  CHECK(style("replicated_with_grad_allreduce") == ReplicateParallel());
  CHECK(style("prepare_module_output", R"j(, "desired_output": ["Shard(1)"])j") ==
        PrepareModuleOutput({}, Shard(1)));
}

TEST_CASE("Hugging Face's plans load as they are") {
  const std::string text = R"j({
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_up_proj": "packed_colwise",
    "model.embed_tokens": "embedding_rowwise",
    "model.norm": "sequence_parallel",
    "lm_head": "colwise_gather_output"})j";
  ParallelPlan expected;
  expected.rules = {{"model.layers.*.self_attn.q_proj", ColwiseParallel()},
                    {"model.layers.*.self_attn.o_proj", RowwiseParallel()},
                    {"model.layers.*.mlp.gate_up_proj", PackedColwise()},
                    {"model.embed_tokens", EmbeddingRowwise()},
                    {"model.norm", SequenceParallel()},
                    {"lm_head", ColwiseParallel({}, Replicate())}};
  expected.uncovered = Uncovered::replicate;
  CHECK(ParallelPlan::from_json(text) == expected);
  CHECK(ParallelPlan::from_hugging_face(text) == expected);
  CHECK(ParallelPlan::from_json(expected.to_json()) == expected);
  CHECK_THAT(fault_of(R"j({"model.layers.*.self_attn.q_proj": "colwize"})j"),
             ContainsSubstring("did you mean \"colwise\"?"));
  CHECK_THAT(fault_of(R"j({"layers.*.mlp.experts": "grouped_gemm"})j"),
             ContainsSubstring("not in this version"));
  CHECK_THROWS_WITH(ParallelPlan::from_hugging_face(R"j({"version": 1})j"), ContainsSubstring("tp_plan"));
}

TEST_CASE("the plans of the examples are valid and round-trip") {
  int plans = 0;
  for (const auto& entry : std::filesystem::directory_iterator(project() / "examples/plans")) {
    if (entry.path().extension() != ".json") continue;
    ++plans;
    INFO(entry.path());
    const ParallelPlan plan = ParallelPlan::from_file(entry.path().string());
    const bool other_library = entry.path().filename() == "llama_hugging_face.json";  // whose plans have no mesh
    CHECK(plan.mesh.has_value() != other_library);
    CHECK_FALSE(plan.rules.empty());
    CHECK(ParallelPlan::from_json(plan.to_json()) == plan);
  }
  CHECK(plans >= 7);
}

TEST_CASE("the plans in the documentation are valid") {
  const std::string page = read(project() / "docs/plan-format.md");
  int plans = 0;
  for (std::size_t at = 0; (at = page.find("```json\n", at)) != std::string::npos; ++plans) {
    at += 8;
    const std::string block = page.substr(at, page.find("```", at) - at);
    const std::string text =
        block.find("\"style\"") == std::string::npos || block.find("\"version\"") != std::string::npos
            ? block
            : with_rule(block);
    INFO(text);
    CHECK(faults_of(text).empty());
  }
  CHECK(plans >= 4);
  for (int kind = 0; kind <= static_cast<int>(StyleKind::embedding_colwise); ++kind) {
    const std::string name = to_string(static_cast<StyleKind>(kind));
    INFO(name);
    CHECK(page.find("\"style\": \"" + name + "\"") != std::string::npos);
  }
}

TEST_CASE("bucket_mb auto in JSON and back") {
  const auto plan = ParallelPlan::from_json(R"j({"version": 1, "data_parallel": {"bucket_mb": "auto"}})j");
  CHECK(plan.data_parallel->bucket_mb == DataParallel::bucket_mb_auto);
  CHECK(ParallelPlan::from_json(plan.to_json()) == plan);
}

TEST_CASE("the schema in the documentation is the one in use") {
  CHECK(read(project() / "docs/plan.schema.json") == dtensor::detail::plan_schema);
}

TEST_CASE("a syntax error says line and column") {
  const std::string fault = fault_of("{\"version\": 1,\n  \"mesh\": }");
  CHECK_THAT(fault, ContainsSubstring("line 2, column 11"));
  CHECK_THAT(fault_of(""), ContainsSubstring("line 1, column 1"));
  CHECK_THAT(fault_of(R"j({"version": 1, "version": 1})j"), ContainsSubstring("\"version\" appears twice"));
  CHECK(faults_of(R"j({"version": 1, "data_parallel": {"bucket_mb": 1e999}})j").size() == 1);
}

TEST_CASE("a plan file that cannot be read, or is faulty, is named") {
  CHECK_THROWS_WITH(ParallelPlan::from_file("no/such/plan.json"), ContainsSubstring("no/such/plan.json"));
  CHECK_THROWS_WITH(ParallelPlan::from_file(std::filesystem::temp_directory_path().string()),
                    ContainsSubstring("cannot read"));
  CHECK_THROWS_WITH(ParallelPlan::from_file((project() / "docs/plan.schema.json").string()),
                    ContainsSubstring("plan.schema.json: at the top: unknown key"));
}

TEST_CASE("the version must be 1") {
  CHECK_THAT(fault_of("{}"), ContainsSubstring("\"version\" is missing"));
  CHECK_THAT(fault_of(R"j({"version": 2})j"), ContainsSubstring("at /version: accepts 1, not 2"));
  CHECK_THAT(fault_of(R"j({"version": "1"})j"), ContainsSubstring("accepts 1, not \"1\""));
  CHECK_THAT(fault_of("[]"), ContainsSubstring("at the top: accepts an object, not []"));
}

TEST_CASE("unknown keys and styles name the nearest valid one") {
  CHECK_THAT(fault_of(R"j({"version": 1, "tensor_paralel": {"rules": []}})j"),
             ContainsSubstring("did you mean \"tensor_parallel\"?"));
  const std::string style =
      fault_of(with_rule(R"j({"match": "a", "style": "colwise"}, {"match": "b.w", "style": "rowise"})j"));
  CHECK_THAT(style, ContainsSubstring("rule 2 (\"b.w\") at /tensor_parallel/rules/1/style"));
  CHECK_THAT(style, ContainsSubstring("\"colwise\", \"rowwise\", \"sequence_parallel\""));
  CHECK_THAT(style, ContainsSubstring("did you mean \"rowwise\"?"));
  const std::string key =
      fault_of(with_rule(R"j({"match": "a", "style": "rowwise", "outputs": ["Shard(1)"]})j"));
  CHECK_THAT(key, ContainsSubstring("unknown key \"outputs\"; did you mean \"output\"?"));
  CHECK_THAT(fault_of(R"j({"version": 1, "data_parallel": {"mode": "zero"}})j"),
             ContainsSubstring("accepts \"replicate\""));
}

TEST_CASE("reserved words are not in this version") {
  const std::string key =
      GENERATE("precision", "pipeline", "context", "expert", "activation_checkpoint", "checkpoint");
  CHECK_THAT(fault_of(R"j({"version": 1, ")j" + key + R"j(": {}})j"),
             ContainsSubstring("\"" + key + "\" is not in this version"));
}

TEST_CASE("reserved modes and styles are not in this version") {
  CHECK_THAT(fault_of(R"j({"version": 1, "data_parallel": {"mode": "fully_shard"}})j"),
             ContainsSubstring("\"fully_shard\" is not in this version"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "grouped_gemm"})j")),
             ContainsSubstring("not in this version"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "colwise", "regather": true})j")),
             ContainsSubstring("not in this version"));
}

TEST_CASE("layouts are lists of one placement") {
  for (const char* layout : {"\"Shard(1)\"", "[]", "[\"Shard(1)\", \"Replicate\"]", "null", "{}"}) {
    CHECK_THAT(
        fault_of(with_rule(std::string(R"j({"match": "a", "style": "rowwise", "output": )j") + layout + "}")),
        ContainsSubstring("/output: accepts a list of one placement"));
  }
  for (const char* layout :
       {"[\"shard(1)\"]", "[\"Shard\"]", "[\"Shard(1\"]", "[1]", "[\"Shard(999999)\"]"}) {
    CHECK_THAT(
        fault_of(with_rule(std::string(R"j({"match": "a", "style": "rowwise", "output": )j") + layout + "}")),
        ContainsSubstring("/output/0: accepts \"Replicate\""));
  }
  for (const char* layout :
       {"Replicate", "Shard(-1)", "Shard(12)", "Partial", "Partial(avg)", "Interleaved(0, [4, 2])"}) {
    CHECK(faults_of(with_rule(std::string(R"j({"match": "a", "style": "rowwise", "output": [")j") + layout +
                              "\"]}"))
              .empty());
  }
}

TEST_CASE("keys that a style does not have are refused") {
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "colwise", "sequence_dim": 1})j")),
             ContainsSubstring("only sequence_parallel"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "sequence_parallel", "input": ["Shard(1)"]})j")),
             ContainsSubstring("remove this key"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "sequence_parallel", "sequence_dim": 1.5})j")),
             ContainsSubstring("accepts the sequence dimension"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a"})j")), ContainsSubstring("the key \"style\" is missing"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "", "style": "colwise"})j")),
             ContainsSubstring("a module path pattern"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a.{b", "style": "colwise"})j")),
             ContainsSubstring("unbalanced braces"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "prepare_input"})j")),
             ContainsSubstring("needs the key \"desired_input\""));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "embedding_rowwise", "parts": [2, 2]})j")),
             ContainsSubstring("does not take this key; remove it (accepts \"output\")"));
  CHECK_THAT(fault_of(with_rule(R"j({"match": "a", "style": "packed_colwise", "parts": [2, 0]})j")),
             ContainsSubstring("the size of a packed part"));
}

TEST_CASE("a mesh's names and shape agree") {
  CHECK(faults_of(with_mesh(R"j({"names": ["dp", "tp"], "shape": [2, -1]})j")).empty());
  CHECK_THAT(fault_of(with_mesh(R"j({"names": ["dp", "tp"], "shape": [2]})j")),
             ContainsSubstring("names has 2 entries, shape has 1"));
  CHECK_THAT(fault_of(with_mesh(R"j({"names": ["tp", "tp"], "shape": [2, 2]})j")),
             ContainsSubstring("distinct names"));
  CHECK_THAT(fault_of(with_mesh(R"j({"names": ["dp", "tp"], "shape": [-1, -1]})j")),
             ContainsSubstring("only one size may be -1"));
  for (const char* size : {"0", "-2", "1.5", "\"2\"", "3000000000"}) {
    CHECK_THAT(fault_of(with_mesh(std::string(R"j({"names": ["tp"], "shape": [)j") + size + "]}")),
               ContainsSubstring("at /mesh/shape/0: accepts a number of ranks"));
  }
}

TEST_CASE("a number that 64 bits cannot hold is refused, not wrapped to -1") {
  CHECK_THAT(fault_of(with_mesh(R"j({"names": ["tp"], "shape": [18446744073709551615]})j")),
             ContainsSubstring("18446744073709551615 is too large"));
}

TEST_CASE("the mesh has the dimensions that the plan names") {
  CHECK_THAT(
      fault_of(R"j({"version": 1, "mesh": {"names": ["data", "tp1"], "shape": [1, 2]},
                          "tensor_parallel": {"rules": []}})j"),
      ContainsSubstring("at /tensor_parallel/dim: the mesh has no dimension \"tp\"; did you mean \"tp1\"?"));
  CHECK_THAT(fault_of(R"j({"version": 1, "mesh": {"names": ["tp"], "shape": [2]}, "data_parallel": {}})j"),
             ContainsSubstring("at /data_parallel/dim"));
  CHECK_THAT(
      fault_of(
          R"j({"version": 1, "tensor_parallel": {"dim": "x", "rules": []}, "data_parallel": {"dim": "x"}})j"),
      ContainsSubstring("each needs its own"));
}

TEST_CASE("all faults are told at once") {
  const std::vector<std::string> faults = faults_of(R"j({
    "version": 2, "pipeline": {}, "mesh": {"names": ["a"], "shape": [1, 2]},
    "tensor_parallel": {"rules": [{"match": "x", "style": "colwize"}, {"style": "rowwise", "input": "Shard(1)"}, 3]},
    "policy": {"fallback": "never", "plain": "error"}})j");
  std::string all;
  for (const std::string& fault : faults) all += fault + "\n";
  INFO(all);
  CHECK(faults.size() == 10);
  for (const char* text :
       {"/version", "pipeline", "names has 1", "colwize", "\"match\" is missing", "/input",
        "/tensor_parallel/rules/2: accepts an object", "\"never\"", "\"plain\"", "no dimension \"tp\""}) {
    CHECK_THAT(all, ContainsSubstring(text));
  }
}

TEST_CASE("the nearest word ignores case and dashes, and nothing is near a foreign word") {
  const std::vector<std::string> words{"colwise", "rowwise", "sequence_parallel"};
  CHECK(dtensor::detail::nearest("Sequence-Parallel", words) == "sequence_parallel");
  CHECK(dtensor::detail::nearest("colwise_", words) == "colwise");
  CHECK(dtensor::detail::nearest("banana", words).empty());
  CHECK(dtensor::detail::nearest("", words).empty());
}

TEST_CASE("the examples' plans fit their models") {
  const auto faults = [](const std::string& plan, const std::string& names, std::int64_t world) {
    return dtensor::detail::texts(
        check_plan(read(project() / "examples/plans" / plan), describe_names(names), world));
  };
  CHECK(faults("mlp.json", R"({"up.weight": [256, 64], "up.bias": [256], "down.weight": [64, 256], "down.bias": [64]})", 4).empty());
  std::string llama = R"({"model.embed_tokens.weight": [64, 32], "model.norm.weight": [32], "lm_head.weight": [64, 32])";
  const auto add = [&](const std::string& sizes, std::initializer_list<const char*> names) {
    for (const char* name : names) llama += fmt::format(", \"model.layers.0.{}.weight\": {}", name, sizes);
  };
  add("[32]", {"input_layernorm", "post_attention_layernorm"});
  add("[32, 32]", {"self_attn.q_proj", "self_attn.o_proj"});
  add("[16, 32]", {"self_attn.k_proj", "self_attn.v_proj"});
  add("[48, 32]", {"mlp.gate_proj", "mlp.up_proj"});
  add("[32, 48]", {"mlp.down_proj"});
  llama += "}";
  CHECK(faults("llama_hugging_face.json", llama, 2).empty());
  for (const std::int64_t world : {1, 2, 4}) CHECK(faults("llama_tp_sp.json", llama, world).empty());
}
