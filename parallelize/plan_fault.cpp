#include "parallelize/plan_fault.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace dtensor {
namespace {

using nlohmann::ordered_json;

ordered_json object_of(const PlanFault& fault) {
  ordered_json object;
  object["kind"] = to_string(fault.kind);
  if (fault.rule) object["rule"] = *fault.rule + 1;
  if (!fault.pattern.empty()) object["match"] = fault.pattern;
  if (!fault.module.empty()) object["module"] = fault.module;
  if (!fault.module_type.empty()) object["type"] = fault.module_type;
  if (fault.more_modules > 0) object["more_modules"] = fault.more_modules;
  if (!fault.shape.empty()) object["shape"] = fault.shape;
  if (!fault.mesh_dim.empty()) object["mesh_dim"] = fault.mesh_dim;
  if (fault.mesh_dim_size > 0) object["mesh_dim_size"] = fault.mesh_dim_size;
  if (!fault.asked.empty()) object["asked"] = fault.asked;
  if (!fault.nearest.empty()) object["nearest"] = fault.nearest;
  object["text"] = fault.text;
  return object;
}

}  // namespace

const char* to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::syntax:
      return "syntax";
    case FaultKind::key:
      return "key";
    case FaultKind::style:
      return "style";
    case FaultKind::value:
      return "value";
    case FaultKind::mesh:
      return "mesh";
    case FaultKind::no_match:
      return "no_match";
    case FaultKind::matched_twice:
      return "matched_twice";
    case FaultKind::unsuitable:
      return "unsuitable";
    case FaultKind::uncovered:
      return "uncovered";
    case FaultKind::heads:
      return "heads";
    case FaultKind::kv_heads:
      return "kv_heads";
    case FaultKind::vocabulary:
      return "vocabulary";
    case FaultKind::sequence:
      return "sequence";
    case FaultKind::batch:
      return "batch";
    case FaultKind::empty_shard:
      return "empty_shard";
    case FaultKind::parts:
      return "parts";
    case FaultKind::layout:
      return "layout";
    case FaultKind::tied:
      return "tied";
    case FaultKind::unreachable:
      return "unreachable";
    case FaultKind::applied_twice:
      return "applied_twice";
    case FaultKind::ranks_differ:
      return "ranks_differ";
  }
  return "?";
}

std::string PlanFault::to_json() const {
  return object_of(*this).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string to_json(const std::vector<PlanFault>& faults) {
  ordered_json list = ordered_json::array();
  for (const auto& fault : faults) list.push_back(object_of(fault));
  return list.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

namespace detail {

PlanFault worded(PlanFault fault, const std::string& problem) {
  std::string where;
  const auto add = [&](const std::string& part) { where += where.empty() ? part : ", " + part; };
  if (fault.rule) add(fmt::format("rule {} (\"{}\")", *fault.rule + 1, fault.pattern));
  if (!fault.module.empty()) {
    std::string what = fault.module_type;
    if (!fault.shape.empty())
      what += fmt::format("{}[{}]", what.empty() ? "" : " ", fmt::join(fault.shape, ", "));
    add(fmt::format("module \"{}\"{}", fault.module, what.empty() ? "" : " (" + what + ")"));
  }
  if (fault.more_modules > 0) where += fmt::format(" and {} more", fault.more_modules);
  if (!fault.mesh_dim.empty())
    add(fmt::format("mesh dimension \"{}\"{}", fault.mesh_dim,
                    fault.mesh_dim_size > 0 ? fmt::format(" of {} ranks", fault.mesh_dim_size) : ""));
  fault.text = where.empty() ? problem : where + ": " + problem;
  if (!fault.asked.empty()) fault.text += "; asked for: " + fault.asked;
  if (!fault.nearest.empty()) fault.text += "; nearest valid choice: " + fault.nearest;
  return fault;
}

std::vector<std::string> texts(const std::vector<PlanFault>& faults) {
  std::vector<std::string> result;
  for (const auto& fault : faults) result.push_back(fault.text);
  return result;
}

}  // namespace detail
}  // namespace dtensor
