#include "parallelize/rule_assignment.h"

#include "parallelize/custom_style.h"
#include "parallelize/did_you_mean.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace dtensor::detail {
namespace {

// The rule that counts among those that match a module, and whether that is clear.
std::pair<std::size_t, bool> chosen(const std::vector<std::size_t>& rules, const ParallelPlan& plan) {
  std::optional<std::size_t> winner;
  bool clear = rules.size() == 1;
  for (const auto rule : rules) {
    if (!plan.rules[rule].override_others) continue;
    clear = !winner;
    if (!winner) winner = rule;
  }
  return {winner.value_or(rules.front()), clear};
}

PlanFault matched_twice(const std::vector<std::size_t>& rules, const ParallelPlan& plan,
                        const ModuleDescription& description, const DescribedModule& module,
                        std::size_t more) {
  PlanFault fault;
  fault.kind = FaultKind::matched_twice;
  fault.rule = rules[1];
  fault.pattern = plan.rules[rules[1]].match;
  fault.module = module.path;
  fault.module_type = module.type;
  if (module.weight) fault.shape = description.tensors[*module.weight].sizes;
  fault.more_modules = more;
  fault.nearest = "narrow a pattern, or say \"override\": true in the one rule that wins";
  std::string list;
  for (const auto rule : rules)
    list += fmt::format("{}rule {} (\"{}\", {})", list.empty() ? "" : " and ", rule + 1,
                        plan.rules[rule].match, style_name(plan.rules[rule].style));
  const auto overriding = std::count_if(rules.begin(), rules.end(),
                                        [&](std::size_t rule) { return plan.rules[rule].override_others; });
  return worded(std::move(fault),
                fmt::format("matched by {}: each module takes one{}", list,
                            overriding > 1 ? ", and several of them say \"override\"" : ""));
}

}  // namespace

RuleAssignment assign_rules(const ModuleDescription& module, const ParallelPlan& plan,
                            const std::vector<bool>& broken) {
  RuleAssignment result;
  result.rule_of.resize(module.modules.size());
  result.modules_of.resize(plan.rules.size());
  std::vector<bool> matched(plan.rules.size(), false);
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> conflicts;  // rules -> modules
  std::vector<PathPattern> patterns;
  for (const auto& rule : plan.rules) patterns.emplace_back(rule.match);
  for (std::size_t i = 0; i < module.modules.size(); ++i) {
    std::vector<std::size_t> rules;
    for (std::size_t rule = 0; rule < plan.rules.size(); ++rule)
      if (!plan.rules[rule].match.empty() && patterns[rule].matches(module.modules[i].path)) rules.push_back(rule);
    if (rules.empty()) continue;
    for (const auto rule : rules) matched[rule] = true;
    const auto [winner, clear] = chosen(rules, plan);
    result.rule_of[i] = winner;
    result.modules_of[winner].push_back(i);
    if (!clear) conflicts[rules].push_back(i);
  }
  for (const auto& [rules, modules] : conflicts)
    result.faults.push_back(
        matched_twice(rules, plan, module, module.modules[modules.front()], modules.size() - 1));
  std::vector<std::string> paths;
  for (std::size_t rule = 0; rule < plan.rules.size(); ++rule) {
    const auto& pattern = plan.rules[rule].match;
    if (matched[rule] || (pattern.empty() && rule < broken.size() && broken[rule])) continue;
    if (paths.empty())
      for (const auto& entry : module.modules) paths.push_back(entry.path);
    PlanFault fault;
    fault.kind = FaultKind::no_match;
    fault.rule = rule;
    fault.pattern = pattern;
    fault.nearest = nearest(pattern, paths);
    auto told = worded(fault, "matches no module" + did_you_mean(pattern, paths));
    if (!fault.nearest.empty()) told.text.resize(told.text.find("; nearest valid choice"));  // said already
    result.faults.push_back(std::move(told));
  }
  return result;
}

}  // namespace dtensor::detail
