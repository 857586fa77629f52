// Plans as JSON text. Faults of the text are found by plan_faults.cpp; this file reads what has none, and
// writes.
#include "parallelize/plan.h"
#include "parallelize/plan_faults.h"
#include "placements/error.h"

#include <nlohmann/json.hpp>

#include <array>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

namespace dtensor {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <typename Enum, std::size_t n>
using Names = std::array<std::pair<Enum, const char*>, n>;

constexpr Names<StyleKind, 3> style_names{{{StyleKind::colwise, "colwise"},
                                           {StyleKind::rowwise, "rowwise"},
                                           {StyleKind::sequence_parallel, "sequence_parallel"}}};
constexpr Names<Fallback, 3> fallback_names{
    {{Fallback::allow, "allow"}, {Fallback::warn, "warn"}, {Fallback::error, "error"}}};
constexpr Names<ImplicitMoves, 2> implicit_moves_names{
    {{ImplicitMoves::allow, "allow"}, {ImplicitMoves::error, "error"}}};
constexpr Names<PlainTensors, 2> plain_tensors_names{
    {{PlainTensors::error, "error"}, {PlainTensors::replicate_checked, "replicate_checked"}}};

template <typename Enum, std::size_t n>
const char* name_of(Enum value, const Names<Enum, n>& names) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "";
}

// The value of a key, or `unset` where the key is absent. The schema has checked the name.
template <typename Enum, std::size_t n>
Enum value_of(const json& object, const char* key, Enum unset, const Names<Enum, n>& names) {
  const std::string text = object.value(key, "");
  for (const auto& [known, name] : names) {
    if (text == name) return known;
  }
  return unset;
}

// Parses JSON text. Faults here, because the parsed document no longer shows them: a key that an object holds
// twice (the last would win) and an integer beyond 64 bits (it would wrap).
json parse(const std::string& text) {
  std::vector<std::set<std::string>> keys_of_open_objects;
  std::vector<std::string> faults;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) keys_of_open_objects.pop_back();
    if (event == json::parse_event_t::key &&
        !keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
      faults.push_back("the key " + parsed.dump() + " appears twice in one object");
    }
    if (event == json::parse_event_t::value && parsed.is_number_unsigned() &&
        parsed.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      faults.push_back("the number " + parsed.dump() + " is too large");
    }
    return true;
  };
  json document;
  try {
    document = json::parse(text, watch);
  } catch (const json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while parsing ..."
    std::string message = error.what();
    if (const auto at = message.find("line "); at != std::string::npos) message = message.substr(at);
    throw PlanError({message});
  }
  if (!faults.empty()) throw PlanError(std::move(faults));
  return document;
}

std::optional<Placement> read_layout(const json& document, std::size_t rule, const char* key,
                                     std::vector<std::string>& faults) {
  const json& layouts = document.at("tensor_parallel").at("rules").at(rule);
  if (!layouts.contains(key)) return std::nullopt;
  try {
    return Placement::parse(layouts.at(key).at(0).get<std::string>());
  } catch (const PlacementError& error) {
    faults.push_back(
        detail::plan_place(document, {"tensor_parallel", "rules", std::to_string(rule), key, "0"}) + ": " +
        error.what_without_backtrace());
    return std::nullopt;
  }
}

ordered_json written(const Style& style) {
  ordered_json object;
  object["style"] = name_of(style.kind, style_names);
  if (style.input) object["input"] = {style.input->to_string()};
  if (style.output) object["output"] = {style.output->to_string()};
  if (style.kind == StyleKind::sequence_parallel || style.sequence_dim != 1) {
    object["sequence_dim"] = style.sequence_dim;
  }
  return object;
}

}  // namespace

ParallelPlan ParallelPlan::from_json(const std::string& text) {
  const json document = parse(text);
  std::vector<std::string> faults = detail::plan_faults(document);
  if (!faults.empty()) throw PlanError(std::move(faults));

  ParallelPlan plan;
  if (document.contains("mesh")) {
    const json& mesh = document.at("mesh");
    plan.mesh = PlanMesh{mesh.at("names"), mesh.at("shape")};
  }
  if (document.contains("tensor_parallel")) {
    const json& section = document.at("tensor_parallel");
    plan.tensor_parallel_dim = section.value("dim", plan.tensor_parallel_dim);
    for (std::size_t i = 0; i < section.at("rules").size(); ++i) {
      const json& rule = section.at("rules").at(i);
      plan.rules.push_back(
          {rule.at("match"),
           {value_of(rule, "style", StyleKind::colwise, style_names),
            read_layout(document, i, "input", faults), read_layout(document, i, "output", faults),
            rule.value("sequence_dim", Style{}.sequence_dim)}});
    }
  }
  if (document.contains("data_parallel")) {
    const json& section = document.at("data_parallel");
    const DataParallel unset;
    plan.data_parallel =
        DataParallel{section.value("dim", unset.dim), section.value("mode", unset.mode),
                     section.value("batch_dim", unset.batch_dim), section.value("bucket_mb", unset.bucket_mb),
                     section.value("reduce_dtype", unset.reduce_dtype)};
  }
  if (document.contains("policy")) {
    const json& section = document.at("policy");
    const Policy unset;
    plan.policy = Policy{value_of(section, "fallback", unset.fallback, fallback_names),
                         value_of(section, "implicit_moves", unset.implicit_moves, implicit_moves_names),
                         value_of(section, "plain_tensors", unset.plain_tensors, plain_tensors_names)};
  }
  if (!faults.empty()) throw PlanError(std::move(faults));
  return plan;
}

ParallelPlan ParallelPlan::from_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw PlanError({"cannot read the plan file " + path});
  try {
    return from_json(text.str());
  } catch (const PlanError& error) {
    std::vector<std::string> faults;
    for (const std::string& fault : error.faults()) faults.push_back(path + ": " + fault);
    throw PlanError(std::move(faults));
  }
}

std::string ParallelPlan::to_json() const {
  ordered_json document;
  document["version"] = 1;
  if (mesh) document["mesh"] = {{"names", mesh->names}, {"shape", mesh->shape}};
  if (!rules.empty() || tensor_parallel_dim != ParallelPlan{}.tensor_parallel_dim) {
    ordered_json list = ordered_json::array();
    for (const PlanRule& rule : rules) {
      ordered_json object;
      object["match"] = rule.match;
      object.update(written(rule.style));
      list.push_back(std::move(object));
    }
    document["tensor_parallel"] = {{"dim", tensor_parallel_dim}, {"rules", std::move(list)}};
  }
  if (data_parallel) {
    document["data_parallel"] = {{"dim", data_parallel->dim},
                                 {"mode", data_parallel->mode},
                                 {"batch_dim", data_parallel->batch_dim},
                                 {"bucket_mb", data_parallel->bucket_mb},
                                 {"reduce_dtype", data_parallel->reduce_dtype}};
  }
  if (policy) {
    document["policy"] = {{"fallback", name_of(policy->fallback, fallback_names)},
                          {"implicit_moves", name_of(policy->implicit_moves, implicit_moves_names)},
                          {"plain_tensors", name_of(policy->plain_tensors, plain_tensors_names)}};
  }
  const std::string text = document.dump(2);
  from_json(text);  // a plan made in code may hold what the format refuses
  return text;
}

}  // namespace dtensor
