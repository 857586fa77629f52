// What is wrong with the text of a plan, in words.
#pragma once

#include "parallelize/plan_fault.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace dtensor::detail {

// All faults of a plan document against the schema of format version 1 and against what a schema cannot say
// (lengths that must agree, names that must exist). Each names its place as a JSON pointer, with the rule's
// number for a rule. A document without faults holds what plan_json.cpp reads from it, placements' texts
// excepted.
std::vector<PlanFault> document_faults(const nlohmann::json& document);

// "rule 2 ("blocks.*.wo") at /tensor_parallel/rules/1/output", or "at /mesh/shape", for a place of a
// document.
std::string plan_place(const nlohmann::json& document, const std::vector<std::string>& path);

}  // namespace dtensor::detail
