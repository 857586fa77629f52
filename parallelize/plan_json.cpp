// Plans as JSON text. Faults of the text are found by document_faults.cpp; this file reads what has none, and
// writes.
#include "parallelize/plan.h"
#include "parallelize/custom_style.h"
#include "parallelize/document_faults.h"
#include "parallelize/read_plan.h"
#include "parallelize/style_names.h"
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

constexpr Names<Uncovered, 2> uncovered_names{
    {{Uncovered::error, "error"}, {Uncovered::replicate, "replicate"}}};
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
ordered_json parse(const std::string& text, std::vector<PlanFault>& faults) {
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto report = [&](FaultKind kind, const std::string& words) {
    PlanFault fault;
    fault.kind = kind;
    fault.text = words;
    faults.push_back(std::move(fault));
  };
  const auto watch = [&](int, ordered_json::parse_event_t event, ordered_json& parsed) {
    using Event = ordered_json::parse_event_t;
    if (event == Event::object_start) keys_of_open_objects.emplace_back();
    if (event == Event::object_end) keys_of_open_objects.pop_back();
    if (event == Event::key && !keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
      report(FaultKind::key, "the key " + parsed.dump() + " appears twice in one object");
    }
    if (event == Event::value && parsed.is_number_unsigned() &&
        parsed.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      report(FaultKind::value, "the number " + parsed.dump() + " is too large");
    }
    return true;
  };
  try {
    return ordered_json::parse(text, watch);
  } catch (const ordered_json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while parsing ..."
    std::string message = error.what();
    if (const auto at = message.find("line "); at != std::string::npos) message = message.substr(at);
    faults.clear();
    report(FaultKind::syntax, message);
    return {};
  }
}

bool looks_like_hugging_face(const ordered_json& document) {
  static const std::set<std::string> ours{"version",         "$schema",       "mesh",
                                          "tensor_parallel", "data_parallel", "policy"};
  if (!document.is_object() || document.empty()) return false;
  for (const auto& item : document.items()) {
    if (!item.value().is_string() || ours.count(item.key())) return false;
  }
  return true;
}

json from_tp_plan(const ordered_json& names) {
  json rules = json::array();
  for (const auto& item : names.items()) rules.push_back({{"match", item.key()}, {"style", item.value()}});
  return {{"version", 1}, {"tensor_parallel", {{"uncovered", "replicate"}, {"rules", std::move(rules)}}}};
}

std::optional<Placement> read_layout(const json& document, std::size_t rule, const char* key,
                                     std::vector<PlanFault>& faults) {
  const json& layouts = document.at("tensor_parallel").at("rules").at(rule);
  if (!layouts.contains(key)) return std::nullopt;
  try {
    return Placement::parse(layouts.at(key).at(0).get<std::string>());
  } catch (const PlacementError& error) {
    PlanFault fault;
    fault.kind = FaultKind::value;
    fault.rule = rule;
    fault.pattern = layouts.value("match", "");
    fault.text = detail::plan_place(document, {"tensor_parallel", "rules", std::to_string(rule), key, "0"}) +
                 ": " + error.what_without_backtrace();
    faults.push_back(std::move(fault));
    return std::nullopt;
  }
}

PlanRule read_rule(const json& document, std::size_t index, std::vector<PlanFault>& faults) {
  const json& rule = document.at("tensor_parallel").at("rules").at(index);
  PlanRule result;
  result.match = rule.at("match");
  result.override_others = rule.value("override", false);
  Style style = *detail::style_of_name(rule.at("style"));
  const auto layout = [&](const char* key, std::optional<Placement>& place) {
    if (auto stated = read_layout(document, index, key, faults)) place = stated;
  };
  layout("input", style.input);
  layout("output", style.output);
  layout("desired_input", style.desired_input);
  layout("desired_output", style.desired_output);
  style.sequence_dim = rule.value("sequence_dim", style.sequence_dim);
  style.parts = rule.value("parts", style.parts);
  style.heads = rule.value("heads", style.heads);
  style.kv_heads = rule.value("kv_heads", style.kv_heads);
  style.share_kv_heads = rule.value("share_kv_heads", style.share_kv_heads);
  result.style = std::move(style);
  return result;
}

void read_rules(const json& document, detail::ReadPlan& read) {
  const json& section = document.at("tensor_parallel");
  read.plan.uncovered = value_of(section, "uncovered", read.plan.uncovered, uncovered_names);
  const json& rules = section.at("rules");
  read.broken.assign(rules.size(), false);
  for (const auto& fault : read.faults) {
    if (fault.rule && *fault.rule < rules.size()) read.broken[*fault.rule] = true;
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto known = read.faults.size();
    if (!read.broken[i]) {
      read.plan.rules.push_back(read_rule(document, i, read.faults));
      read.broken[i] = read.faults.size() > known;
      continue;
    }
    PlanRule& rule = read.plan.rules.emplace_back();  // what can be read of it
    if (!rules[i].is_object()) continue;
    const json match = rules[i].value("match", json());
    try {
      if (match.is_string() && (matches(match, ""), true)) rule.match = match;
    } catch (const PlanError&) {
    }
    const json wins = rules[i].value("override", json());
    rule.override_others = wins.is_boolean() && wins.get<bool>();
  }
  if (section.contains("dim")) {
    const json& dim = section.at("dim");
    if (dim.is_array())
      read.plan.tensor_parallel_dims = dim.get<std::vector<std::string>>();
    else
      read.plan.tensor_parallel_dims = {dim.get<std::string>()};
  }
}

void read_mesh(const json& document, detail::ReadPlan& read) {
  const json& section = document.at("mesh");
  PlanMesh mesh{section.at("names"), section.at("shape")};
  bool sound = mesh.names.size() == mesh.shape.size();
  int open = 0;
  for (const auto size : mesh.shape) {
    open += size == -1;
    sound = sound && (size == -1 || size > 0);
  }
  if (sound && open <= 1) read.plan.mesh = std::move(mesh);
}

void read_data_parallel(const json& document, detail::ReadPlan& read) {
  const json& section = document.at("data_parallel");
  const DataParallel unset;
  const json size = section.value("bucket_mb", json(unset.bucket_mb));
  const double bucket_mb = size.is_string() ? DataParallel::bucket_mb_auto : size.get<double>();
  read.plan.data_parallel =
      DataParallel{section.value("dim", unset.dim), section.value("mode", unset.mode),
                   section.value("batch_dim", unset.batch_dim), bucket_mb,
                   section.value("reduce_dtype", unset.reduce_dtype)};
}

void read_policy(const json& document, detail::ReadPlan& read) {
  const json& section = document.at("policy");
  const Policy unset;
  read.plan.policy = Policy{value_of(section, "fallback", unset.fallback, fallback_names),
                            value_of(section, "implicit_moves", unset.implicit_moves, implicit_moves_names),
                            value_of(section, "plain_tensors", unset.plain_tensors, plain_tensors_names)};
}

ordered_json written(const PlanRule& rule) {
  ordered_json object;
  const Style& style = rule.style;
  object["match"] = rule.match;
  object["style"] = detail::style_name(style);
  const auto layout = [&](const char* key, const std::optional<Placement>& placement) {
    if (placement) object[key] = {placement->to_string()};
  };
  layout("input", style.input);
  const bool custom = style.kind == StyleKind::custom;  // its layouts are in its name
  if (!custom) layout("desired_input", style.desired_input);
  layout("output", style.output);
  if (!custom) layout("desired_output", style.desired_output);
  if (style.kind == StyleKind::sequence_parallel || style.sequence_dim != 1) {
    object["sequence_dim"] = style.sequence_dim;
  }
  if (!style.parts.empty()) object["parts"] = style.parts;
  if (style.heads != 0) object["heads"] = style.heads;
  if (style.kv_heads != 0) object["kv_heads"] = style.kv_heads;
  if (style.share_kv_heads) object["share_kv_heads"] = true;
  if (rule.override_others) object["override"] = true;
  return object;
}

ParallelPlan faultless(detail::ReadPlan read) {
  if (!read.faults.empty()) throw PlanError(detail::texts(read.faults));
  return std::move(read.plan);
}

}  // namespace

namespace detail {

ReadPlan read_plan(const std::string& text, bool hugging_face) {
  ReadPlan read;
  const ordered_json parsed = parse(text, read.faults);
  if (!read.faults.empty()) {
    read.readable = false;
    return read;
  }
  if (hugging_face && !looks_like_hugging_face(parsed)) {
    PlanFault fault;
    fault.kind = FaultKind::value;
    fault.text =
        "a Hugging Face tp_plan is an object of styles by module path, such as "
        "{\"model.layers.*.self_attn.q_proj\": \"colwise\"}";
    read.faults.push_back(std::move(fault));
    read.readable = false;
    return read;
  }
  const json document = looks_like_hugging_face(parsed) ? from_tp_plan(parsed) : json(parsed);
  read.faults = document_faults(document);
  if (!document.is_object()) {
    read.readable = false;
    return read;
  }
  // A section that cannot be read has a fault already.
  const auto section = [&](const char* key, void (*reader)(const json&, ReadPlan&)) {
    try {
      if (document.contains(key)) reader(document, read);
    } catch (const json::exception&) {
    }
  };
  section("mesh", read_mesh);
  section("tensor_parallel", read_rules);
  section("data_parallel", read_data_parallel);
  section("policy", read_policy);
  return read;
}

}  // namespace detail

ParallelPlan ParallelPlan::from_json(const std::string& text) { return faultless(detail::read_plan(text)); }
ParallelPlan ParallelPlan::from_hugging_face(const std::string& text) {
  return faultless(detail::read_plan(text, true));
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

std::string detail::plan_text(const ParallelPlan& plan, int indent) {
  ordered_json document;
  document["version"] = 1;
  if (plan.mesh) document["mesh"] = {{"names", plan.mesh->names}, {"shape", plan.mesh->shape}};
  const ParallelPlan unset;
  if (!plan.rules.empty() || plan.tensor_parallel_dims != unset.tensor_parallel_dims ||
      plan.uncovered != unset.uncovered) {
    ordered_json list = ordered_json::array();
    for (const PlanRule& rule : plan.rules) list.push_back(written(rule));
    const auto& dims = plan.tensor_parallel_dims;
    document["tensor_parallel"] = {{"dim", dims.size() == 1 ? ordered_json(dims[0]) : ordered_json(dims)},
                                   {"rules", std::move(list)}};
    if (plan.uncovered != unset.uncovered) {
      document["tensor_parallel"]["uncovered"] = name_of(plan.uncovered, uncovered_names);
    }
  }
  if (const auto& parallel = plan.data_parallel) {
    document["data_parallel"] = {{"dim", parallel->dim},
                                 {"mode", parallel->mode},
                                 {"batch_dim", parallel->batch_dim},
                                 {"bucket_mb", parallel->bucket_mb},
                                 {"reduce_dtype", parallel->reduce_dtype}};
    if (parallel->bucket_mb == DataParallel::bucket_mb_auto) document["data_parallel"]["bucket_mb"] = "auto";
  }
  if (const auto& policy = plan.policy) {
    document["policy"] = {{"fallback", name_of(policy->fallback, fallback_names)},
                          {"implicit_moves", name_of(policy->implicit_moves, implicit_moves_names)},
                          {"plain_tensors", name_of(policy->plain_tensors, plain_tensors_names)}};
  }
  return document.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

std::string ParallelPlan::to_json() const {
  const std::string text = detail::plan_text(*this);
  from_json(text);  // a plan made in code may hold what the format refuses
  return text;
}

}  // namespace dtensor
