// GCC 12 warns of std::string's own code (its bug 105329) where valijson calls replace, a system header notwithstanding.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wrestrict"
#endif

#include "parallelize/document_faults.h"

#include "parallelize/custom_style.h"
#include "parallelize/did_you_mean.h"
#include "parallelize/plan.h"
#include "parallelize/plan_schema.h"
#include "parallelize/style_names.h"
#include "placements/error.h"

#include <nlohmann/json.hpp>

#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace dtensor::detail {
namespace {

using nlohmann::json;
using Path = std::vector<std::string>;  // the components of a JSON pointer
using Faults = std::vector<PlanFault>;
using Adapter = valijson::adapters::NlohmannJsonAdapter;

const json& schema_document() {
  static const json document = json::parse(plan_schema);
  return document;
}

const valijson::Schema& schema() {
  static const valijson::Schema* compiled = [] {
    auto* fresh = new valijson::Schema;
    valijson::SchemaParser(valijson::SchemaParser::kDraft7)
        .populateSchema(Adapter(schema_document()), *fresh);
    return fresh;
  }();
  return *compiled;
}

json::json_pointer pointer(const Path& path) {
  json::json_pointer result;
  for (const std::string& component : path) result.push_back(component);
  return result;
}

// The value at a place; null where there is none.
json value_at(const json& document, const Path& path) {
  const json::json_pointer place = pointer(path);
  return document.contains(place) ? document.at(place) : json();
}

// The part of the schema that governs a place.
json schema_at(const Path& path) {
  json part = schema_document();
  const auto resolve = [&part] {
    if (part.contains("$ref")) {
      part = schema_document().at(json::json_pointer(part.at("$ref").get<std::string>().substr(1)));
    }
  };
  for (const std::string& component : path) {
    part = part.contains("items")
               ? json(part.at("items"))
               : part.value(json::json_pointer("/properties/" + component), json::object());
    resolve();
  }
  return part;
}

std::vector<std::string> strings(const json& list) {
  std::vector<std::string> result;
  for (const json& entry : list) {
    if (entry.is_string()) result.push_back(entry.get<std::string>());
  }
  return result;
}

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> result;
  for (const auto& item : object.items()) result.push_back(item.key());
  return result;
}

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "\"" : ", \"") + word + "\"";
  return text;
}

std::string shown(const json& value) {
  constexpr std::size_t longest = 60;
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

// What a part of the schema accepts, in words.
std::string accepted(const json& part) {
  if (part.contains("x-accepts")) return part.at("x-accepts").get<std::string>();
  if (part.contains("const")) return part.at("const").dump();
  if (part.contains("enum")) return quoted(strings(part.at("enum")));
  const std::string type = part.value("type", "something else");
  return (type == "object" || type == "array" || type == "integer" ? "an " : "a ") + type;
}

// The rule that a place lies in.
std::optional<std::size_t> rule_of(const Path& path) {
  if (path.size() < 3 || path[0] != "tensor_parallel" || path[1] != "rules") return std::nullopt;
  return std::stoul(path[2]);
}

void report(Faults& faults, FaultKind kind, const json& document, const Path& path, const std::string& text) {
  PlanFault fault;
  fault.kind = kind;
  fault.rule = rule_of(path);
  if (fault.rule) {
    const json match = value_at(document, {path[0], path[1], path[2], "match"});
    if (match.is_string()) fault.pattern = match.get<std::string>();
  }
  fault.text = plan_place(document, path) + ": " + text;
  faults.push_back(std::move(fault));
}

std::string not_in_this_version(const std::string& word) { return "\"" + word + "\" is not in this version"; }

// Keys of an object that its part of the schema does not know.
void unknown_keys(const json& document, const Path& path, const json& part, Faults& faults) {
  const std::vector<std::string> known = keys(part.value("properties", json::object()));
  const std::vector<std::string> reserved = strings(part.value("x-reserved", json::array()));
  for (const std::string& key : keys(value_at(document, path))) {
    if (contains(known, key)) continue;
    if (contains(reserved, key)) {
      report(faults, FaultKind::key, document, path, "the key " + not_in_this_version(key));
    } else {
      std::vector<std::string> shown_keys = known;
      std::erase(shown_keys, "$schema");
      report(
          faults, FaultKind::key, document, path,
          "unknown key \"" + key + "\"" + did_you_mean(key, known) + " (accepts " + quoted(shown_keys) + ")");
    }
  }
}

std::string wrong_value(const json& value, const json& part) {
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  if (contains(strings(part.value("x-reserved", json::array())), word)) {
    return not_in_this_version(word) + " (accepts " + accepted(part) + ")";
  }
  return "accepts " + accepted(part) + ", not " + shown(value) +
         did_you_mean(word, strings(part.value("enum", json::array())));
}

// Orders places as a reader would: rule 2 before rule 10, and what lies below a place right after it.
struct ReadingOrder {
  bool operator()(const Path& a, const Path& b) const {
    const auto index = [](const std::string& text) {
      return text.find_first_not_of("0123456789") == std::string::npos ? text.size() : 0;
    };
    return std::lexicographical_compare(
        a.begin(), a.end(), b.begin(), b.end(),
        [&](const auto& x, const auto& y) { return std::pair(index(x), x) < std::pair(index(y), y); });
  }
};
using Findings = std::map<Path, std::vector<std::string>, ReadingOrder>;  // valijson's descriptions per place

Findings findings(const json& document) {
  valijson::Validator validator;
  valijson::ValidationResults results;
  validator.validate(schema(), Adapter(document), &results);
  Findings found;
  for (const auto& error : results) {
    Path path;
    for (std::size_t i = 1; i < error.context.size(); ++i) {  // "<root>", "[mesh]", "[0]"
      path.push_back(error.context[i].substr(1, error.context[i].size() - 2));
    }
    found[path].push_back(error.description);
  }
  return found;
}

// valijson says where; the schema itself says what is accepted there.
void schema_faults(const json& document, Faults& faults) {
  const Findings found = findings(document);
  for (auto at = found.begin(); at != found.end(); ++at) {
    const auto& [path, descriptions] = *at;
    const auto next = std::next(at);
    const bool has_deeper = next != found.end() && next->first.size() > path.size() &&
                            std::equal(path.begin(), path.end(), next->first.begin());
    const json value = value_at(document, path);
    const json part = schema_at(path);
    bool keys_are_wrong = false;
    bool value_is_wrong = false;
    for (const std::string& description : descriptions) {
      if (description.starts_with("Missing required property '")) {
        const std::size_t begin = description.find('\'') + 1;
        Path missing = path;
        missing.push_back(description.substr(begin, description.rfind('\'') - begin));
        report(
            faults, FaultKind::key, document, path,
            "the key \"" + missing.back() + "\" is missing (accepts " + accepted(schema_at(missing)) + ")");
      } else if (description.starts_with("Object contains a property")) {
        keys_are_wrong = true;
      } else if (!has_deeper || !description.starts_with("Failed to validate")) {  // those only point below
        value_is_wrong = true;
      }
    }
    if (keys_are_wrong) unknown_keys(document, path, part, faults);
    if (!value_is_wrong) continue;
    const bool style = rule_of(path) && path.size() == 4 && path[3] == "style" && value.is_string();
    const bool mesh = !path.empty() && path[0] == "mesh";
    if (style && find_custom_style(value.get<std::string>())) continue;  // which the schema cannot know
    report(faults,
           style  ? FaultKind::style
           : mesh ? FaultKind::mesh
                  : FaultKind::value,
           document, path, wrong_value(value, part));
    faults.back().asked = shown(value);
    if (!value.is_string()) continue;
    auto words = strings(part.value("enum", json::array()));
    if (style)
      for (const auto& name : custom_style_names()) words.push_back(name);
    faults.back().nearest = nearest(value.get<std::string>(), words);
  }
}

// What a schema cannot say. Looks at well-formed parts only: the schema has spoken on the others.
void mesh_faults(const json& document, Faults& faults) {
  const json mesh = value_at(document, {"mesh"});
  if (!mesh.is_object()) return;
  const json names = mesh.value("names", json());
  const json shape = mesh.value("shape", json());
  if (names.is_array() && shape.is_array() && names.size() != shape.size()) {
    report(faults, FaultKind::mesh, document, {"mesh"},
           "names has " + std::to_string(names.size()) + " entries, shape has " +
               std::to_string(shape.size()) + "; each mesh dimension needs a name and a size");
  }
  if (shape.is_array() && std::count(shape.begin(), shape.end(), json(-1)) > 1) {
    report(faults, FaultKind::mesh, document, {"mesh", "shape"},
           "only one size may be -1, not those of " + shown(shape));
  }
}

void dim_faults(const json& document, Faults& faults) {
  const json names = value_at(document, {"mesh", "names"});
  std::map<std::string, std::vector<std::string>> dims;
  for (const auto& [section, standard] :
       {std::pair{"tensor_parallel", "tp"}, std::pair{"data_parallel", "dp"}}) {
    const json part = value_at(document, {section});
    if (!part.is_object()) continue;
    const json dim = part.value("dim", json(standard));
    dims[section] = strings(dim.is_array() ? dim : json::array({dim}));
    if (!names.is_array()) {
      if (dims[section].size() > 1)
        report(faults, FaultKind::mesh, document, {section, "dim"},
               "several mesh dimensions need a \"mesh\" that tells their sizes");
      continue;
    }
    for (const auto& name : dims[section]) {
      if (contains(strings(names), name)) continue;
      report(faults, FaultKind::mesh, document, {section, "dim"},
             "the mesh has no dimension \"" + name + "\"" + did_you_mean(name, strings(names)) +
                 " (it has: " + quoted(strings(names)) + ")");
    }
  }
  for (const auto& name : dims["data_parallel"]) {
    if (!contains(dims["tensor_parallel"], name)) continue;
    report(faults, FaultKind::mesh, document, {"data_parallel", "dim"},
           "\"" + name + "\" is a tensor-parallel dimension too; each needs its own");
  }
}

// A key that is valid in a rule, but not with this rule's style.
std::string wrong_key(const std::string& key, const std::string& name,
                      const std::vector<std::string>& accepted) {
  if (key == "sequence_dim") {
    return "only sequence_parallel has this key; for " + name +
           " state \"input\" or \"output\", such as [\"Shard(1)\"]";
  }
  if (key == "input" && name == "sequence_parallel") {
    return "a sequence_parallel input is sharded on sequence_dim; remove this key";
  }
  return "style " + name + " does not take this key; remove it (accepts " + quoted(accepted) + ")";
}

void rule_faults(const json& document, Faults& faults) {
  const json rules = value_at(document, {"tensor_parallel", "rules"});
  if (!rules.is_array()) return;
  const std::vector<std::string> known = keys(schema_at({"tensor_parallel", "rules", "0"}).at("properties"));
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const json& rule = rules[i];
    if (!rule.is_object()) continue;
    const auto place = [&](const std::string& key) {
      return Path{"tensor_parallel", "rules", std::to_string(i), key};
    };
    const json match = rule.value("match", json());
    if (match.is_string()) {
      try {
        matches(match.get<std::string>(), "");
      } catch (const PlanError& error) {
        for (const std::string& fault : error.faults()) {
          report(faults, FaultKind::value, document, place("match"), fault);
        }
      }
    }
    const json name = rule.value("style", json());
    const auto style = name.is_string() ? style_of_name(name.get<std::string>()) : std::nullopt;
    if (!style) continue;
    const auto accepted_keys = keys_of_style(style->kind);
    for (const std::string& key : keys(rule)) {
      const bool of_all = key == "match" || key == "style" || key == "override";
      if (of_all || contains(accepted_keys, key) || !contains(known, key)) continue;
      report(faults, FaultKind::key, document, place(key),
             wrong_key(key, name.get<std::string>(), accepted_keys));
    }
    for (const std::string& key : required_keys_of_style(style->kind)) {
      if (rule.contains(key)) continue;
      report(faults, FaultKind::key, document, {"tensor_parallel", "rules", std::to_string(i)},
             "style " + name.get<std::string>() + " needs the key \"" + key + "\" (accepts " +
                 accepted(schema_at(place(key))) + ")");
    }
  }
}

}  // namespace

std::string plan_place(const json& document, const Path& path) {
  if (path.empty()) return "at the top";
  const std::string text = "at " + pointer(path).to_string();
  if (path.size() < 3 || path[0] != "tensor_parallel" || path[1] != "rules") return text;
  const json match = value_at(document, {path[0], path[1], path[2], "match"});
  return "rule " + std::to_string(std::stoul(path[2]) + 1) +
         (match.is_string() ? " (" + shown(match) + ") " : " ") + text;
}

std::vector<PlanFault> document_faults(const json& document) {
  Faults faults;
  schema_faults(document, faults);
  mesh_faults(document, faults);
  dim_faults(document, faults);
  rule_faults(document, faults);
  return faults;
}

}  // namespace dtensor::detail
