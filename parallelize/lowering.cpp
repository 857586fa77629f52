#include "parallelize/lowering.h"

#include "parallelize/custom_style.h"
#include "parallelize/fault_collector.h"
#include "parallelize/layout_flow.h"
#include "parallelize/rule_assignment.h"
#include "parallelize/size_checks.h"
#include "parallelize/style_lowering.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

namespace dtensor::detail {
namespace {

class Lowering {
 public:
  Lowering(const ModuleDescription& module, const PlanMesh& mesh, const ParallelPlan& plan,
           const ModelFacts& facts, const std::vector<bool>& broken)
      : module_(module), mesh_(mesh), plan_(plan), facts_(facts), broken_(broken), faults_(plan) {
    for (std::size_t dim = 0; dim < mesh.names.size(); ++dim) {
      const auto& names = plan.tensor_parallel_dims;
      if (std::find(names.begin(), names.end(), mesh.names[dim]) == names.end()) continue;
      tp_.push_back(static_cast<int>(dim));
      tp_sizes_.push_back(mesh.shape[dim]);
      ranks_ *= mesh.shape[dim];
    }
    has_tp_ = !tp_.empty();
    if (!has_tp_) tp_ = {0};
  }

  LoweredPlan run() {
    result_.tensors.reserve(module_.tensors.size());
    for (const auto& tensor : module_.tensors)
      result_.tensors.push_back(
          {tensor, Placements(std::max(mesh_.names.size(), std::size_t{1}), Replicate()), {}, {}});
    result_.notes = module_.notes;
    check_applied();
    auto rules = assign_rules(module_, plan_, broken_);
    result_.faults.insert(result_.faults.end(), rules.faults.begin(), rules.faults.end());
    usable_.assign(module_.modules.size(), false);
    for (std::size_t i = 0; i < module_.modules.size(); ++i)
      if (rules.rule_of[i] && !is_broken(*rules.rule_of[i])) usable_[i] = apply(i, *rules.rule_of[i]);
    check_coverage(rules);
    faults_.take(result_.faults);
    check_layouts(module_, plan_, rules, usable_, ranks_, faults_);
    check_facts(rules);
    faults_.take(result_.faults);
    return std::move(result_);
  }

 private:
  static constexpr std::size_t all_dims = std::numeric_limits<std::size_t>::max();

  bool is_broken(std::size_t rule) const { return rule < broken_.size() && broken_[rule]; }

  void check_applied() {
    for (const auto& tensor : module_.tensors) {
      if (!tensor.is_dtensor) continue;
      PlanFault fault;
      fault.kind = FaultKind::applied_twice;
      fault.asked = "a second application";
      fault.nearest = "unparallelize(module) first";
      faults_.add(std::move(fault),
                  fmt::format("\"{}\" is a DTensor already: the module was parallelised before, and a "
                              "plan is applied once",
                              tensor.name));
      return faults_.take(result_.faults);
    }
  }

  // Returns whether the module's layouts are those of its style.
  bool apply(std::size_t index, std::size_t rule) {
    const auto& module = module_.modules[index];
    const Style& style = plan_.rules[rule].style;
    if (!suits(style.kind, module.kind)) {
      auto fault = about(FaultKind::unsuitable, rule, module);
      fault.asked = style_name(style);
      fault.nearest = nearest_style(module.kind);
      faults_.add(std::move(fault), fmt::format("style {} does not suit this type of module ({})",
                                                style_name(style), suited_modules(style.kind)));
      return false;
    }
    const bool prepares = style.desired_input || style.desired_output;
    if (style.kind == StyleKind::custom && !place_custom(index, rule)) return false;
    if (prepares && !module.weight) return prepare(index, rule);
    if (module.unregistered_weight) {
      auto fault = about(FaultKind::unreachable, rule, module);
      fault.nearest = "register the tensor with register_parameter";
      faults_.add(std::move(fault), "its weight is no registered parameter of the module tree");
      return false;
    }
    const SizeCheck check{plan_, module_, facts_, tp_sizes_, ranks_};
    if (!check_sizes(check, rule, module, faults_)) return false;
    std::vector<std::int64_t> parts;
    if (style.kind == StyleKind::packed_colwise || style.kind == StyleKind::packed_rowwise)
      parts = packed_parts(style, weight_sizes(module)[style.kind == StyleKind::packed_colwise ? 0 : 1]);
    auto lowered = lower_style(style, module.kind, parts, tp_);
    if (style.kind == StyleKind::custom) {  // placed already, but for what its operators are to move
      if (module.weight && lowered.wish)
        place(module.weight, result_.tensors[*module.weight].placements[static_cast<std::size_t>(tp_[0])], rule, module,
              lowered.wish);
      return true;
    }
    const auto dims = dims_that_cut(check, rule, module);
    const bool placed = place(module.weight, lowered.weight, rule, module, lowered.wish, dims);
    return place(module.bias, lowered.bias, rule, module, {}, dims) && placed;
  }

  // What stands against this placement for a tensor of a style of the program's own; nothing if it is good.
  struct Misfit {
    FaultKind kind;
    std::string nearest, text;
  };
  std::optional<Misfit> misfit(const Placement& placement, const std::string& name, const std::vector<std::int64_t>& sizes) const {
    if (!placement.is_sharded()) return std::nullopt;
    const auto dim = placement.dim();
    if (dim < 0 || dim >= static_cast<std::int64_t>(sizes.size()))
      return Misfit{FaultKind::value, "one of its dimensions", fmt::format("\"{}\" has sizes [{}]", name, fmt::join(sizes, ", "))};
    const auto size = sizes[static_cast<std::size_t>(dim)];
    if (placement.is_interleaved()) {
      const auto sum = std::accumulate(placement.parts().begin(), placement.parts().end(), std::int64_t{0});
      if (sum != size)
        return Misfit{FaultKind::parts, fmt::format("parts that make {}", size),
                      fmt::format("the parts make {}, dimension {} of \"{}\" has {}", sum, dim, name, size)};
    }
    if (size < ranks_)
      return Misfit{FaultKind::empty_shard, ranks_text(size),
                    fmt::format("dimension {} of \"{}\" has {}, fewer than the ranks", dim, name, size)};
    return std::nullopt;
  }

  // The tensors that a style of the program's own names.
  bool place_custom(std::size_t index, std::size_t rule) {
    const auto& module = module_.modules[index];
    const Style& style = plan_.rules[rule].style;
    const auto custom = find_custom_style(style.custom);
    if (!custom) {
      auto fault = about(FaultKind::style, rule, module);
      fault.asked = style.custom;
      fault.nearest = "register_style first";
      faults_.add(std::move(fault), fmt::format("no style is registered as \"{}\"", style.custom));
      return false;
    }
    bool all = true;
    for (const auto& [name, stated] : custom->tensors) {
      const auto path = module.path + "." + name;
      const auto is_it = [&](const DescribedTensor& tensor) {
        return tensor.name == path || std::find(tensor.aliases.begin(), tensor.aliases.end(), path) != tensor.aliases.end();
      };
      const auto found = std::find_if(module_.tensors.begin(), module_.tensors.end(), is_it);
      const bool exists = found != module_.tensors.end();
      Placement placement = stated;
      if (exists && placement.is_sharded() && placement.dim() < 0)
        placement = placement.with_dim(placement.dim() + static_cast<std::int64_t>(found->sizes.size()));
      auto wrong = exists ? misfit(placement, name, found->sizes)
                          : Misfit{FaultKind::unsuitable, "a type of module that has it",
                                   fmt::format("it has no parameter or buffer \"{}\"", name)};
      if (wrong) {
        auto fault = about(wrong->kind, rule, module);
        fault.asked = fmt::format("{} for \"{}\"", stated.to_string(), name);
        fault.nearest = std::move(wrong->nearest);
        faults_.add(std::move(fault), wrong->text);
        all = false;
        continue;
      }
      const auto at = static_cast<std::size_t>(found - module_.tensors.begin());
      all = place(at, placement, rule, module, {}) && all;
    }
    return all;
  }

  static const char* nearest_style(ModuleKind kind) {
    switch (kind) {
      case ModuleKind::linear:
        return "colwise, rowwise or replicate";
      case ModuleKind::embedding:
        return "embedding_rowwise, embedding_colwise or replicate";
      case ModuleKind::norm:
        return "sequence_parallel or replicate";
      case ModuleKind::no_parameters:
        return "sequence_parallel";
      case ModuleKind::other:
        return "rules for its children, replicate, or prepare_input_output";
    }
    return "";
  }

  bool prepare(std::size_t index, std::size_t rule) {
    const auto& module = module_.modules[index];
    const Style& style = plan_.rules[rule].style;
    LoweredPoint lowered{index, false, {}};
    std::vector<std::string> missing;
    const auto point = [&](const char* name, const std::optional<Placement>& comes,
                           const std::optional<Placement>& desired) {
      if (!desired) return;
      lowered.points.push_back({name, comes, *desired});
      if (std::find(module.points.begin(), module.points.end(), name) == module.points.end())
        missing.emplace_back(name);
    };
    point("input", style.input, style.desired_input);
    point("output", style.output, style.desired_output);
    lowered.by_sequential = !missing.empty() && module.in_sequential;
    if (!missing.empty() && !lowered.by_sequential) {
      auto fault = about(FaultKind::unreachable, rule, module);
      fault.asked = style_name(style);
      const auto call = [](const std::string& name) {
        return fmt::format("x = dtensor::constrain(*this, \"{}\", x);", name);
      };
      std::string calls;
      for (const auto& name : missing) calls += (calls.empty() ? "" : " and ") + call(name);
      fault.nearest = fmt::format(
          "add {} to its forward and dtensor::declare_points(*this, {{\"{}\"}}); to its constructor", calls,
          fmt::join(missing, "\", \""));
      faults_.add(std::move(fault), "no style reaches the forward of a module of this type");
      return false;
    }
    result_.points.push_back(std::move(lowered));
    return true;
  }

  // On the first `dims` tensor-parallel mesh dimensions; whole along the others.
  bool place(const std::optional<std::size_t>& tensor, const Placement& placement, std::size_t rule,
             const DescribedModule& module, const std::optional<Wish>& wish, std::size_t dims = all_dims) {
    if (!tensor) return true;
    auto& entry = result_.tensors[*tensor];
    Placements wanted = entry.placements;
    for (std::size_t i = 0; i < tp_.size(); ++i)
      wanted[static_cast<std::size_t>(tp_[i])] = i < dims ? placement : Placement(Replicate());
    if (entry.rule && wanted != entry.placements) {
      const Placement& place = entry.placements[static_cast<std::size_t>(tp_[0])];
      auto fault = about(FaultKind::tied, rule, module);
      const auto& first = plan_.rules[*entry.rule];
      fault.asked = fmt::format("{} for \"{}\"", placement.to_string(), entry.source.name);
      fault.nearest = fmt::format(
          "{} by both (embedding_rowwise and a colwise head place a tied weight alike)", place.to_string());
      faults_.add(
          std::move(fault),
          fmt::format("tied parameter \"{}\" is placed {} by rule {} (\"{}\", {}): it has one placement",
                      entry.source.name, place.to_string(), *entry.rule + 1, first.match,
                      style_name(first.style)));
      return false;
    }
    entry.placements = std::move(wanted);
    if (!entry.rule) entry.rule = rule;
    const auto same = [&](const Wish& known) { return known.family == wish->family; };
    if (wish && std::none_of(entry.wishes.begin(), entry.wishes.end(), same)) entry.wishes.push_back(*wish);
    return true;
  }

  // A Linear under a module that a rule keeps whole is covered by that rule.
  void check_coverage(const RuleAssignment& rules) {
    if (plan_.uncovered != Uncovered::error) return;
    bool cut = false;
    std::unordered_set<std::string> whole;
    for (std::size_t i = 0; i < module_.modules.size(); ++i) {
      if (!rules.rule_of[i]) continue;
      const auto kind = plan_.rules[*rules.rule_of[i]].style.kind;
      if (is_broken(*rules.rule_of[i]) || kind == StyleKind::replicate)
        whole.insert(module_.modules[i].path);
      else
        cut = cut || (module_.modules[i].kind == ModuleKind::linear && cuts(kind));
    }
    if (!cut) return;
    for (std::size_t i = 0; i < module_.modules.size(); ++i) {
      const auto& module = module_.modules[i];
      if (module.kind != ModuleKind::linear || rules.rule_of[i]) continue;
      bool covered = false;
      for (auto dot = module.path.rfind('.'); dot != std::string::npos && !covered && dot > 0;
           dot = module.path.rfind('.', dot - 1))
        covered = whole.count(module.path.substr(0, dot)) > 0;
      if (covered) continue;
      auto fault = faults_.about(FaultKind::uncovered, std::nullopt, &module, module_);
      fault.mesh_dim = has_tp_ ? faults_.tensor_parallel_dims() : "";
      fault.mesh_dim_size = has_tp_ ? ranks_ : 0;
      fault.nearest = "a rule with style replicate, or \"uncovered\": \"replicate\" for all";
      faults_.add(std::move(fault),
                  "no rule names this Linear while others are cut, so every rank would hold it whole");
    }
  }

  void check_facts(const RuleAssignment& rules) {
    if (facts_.sequence && *facts_.sequence < ranks_) {
      for (std::size_t rule = 0; rule < plan_.rules.size(); ++rule) {
        if (is_broken(rule) || rules.modules_of[rule].empty() ||
            plan_.rules[rule].style.kind != StyleKind::sequence_parallel)
          continue;
        auto fault = faults_.about(FaultKind::sequence, rule,
                                   &module_.modules[rules.modules_of[rule].front()], module_);
        add_size_fault(std::move(fault), faults_.tensor_parallel_dims(), ranks_, *facts_.sequence, "positions");
        break;  // one length for the whole plan
      }
    }
    if (!facts_.batch || !plan_.data_parallel) return;
    const auto at = std::find(mesh_.names.begin(), mesh_.names.end(), plan_.data_parallel->dim);
    if (at == mesh_.names.end()) return;
    const auto dp = mesh_.shape[static_cast<std::size_t>(at - mesh_.names.begin())];
    if (*facts_.batch >= dp) return;
    PlanFault fault;
    fault.kind = FaultKind::batch;
    add_size_fault(std::move(fault), plan_.data_parallel->dim, dp, *facts_.batch, "samples");
  }

  void add_size_fault(PlanFault fault, const std::string& dim, std::int64_t ranks, std::int64_t size,
                      const char* what) {
    fault.mesh_dim = dim;
    fault.mesh_dim_size = ranks;
    fault.asked = fmt::format("{} {}", size, what);
    fault.nearest = fmt::format("{}, or {} {}", ranks_text(size), ranks, what);
    faults_.add(std::move(fault), fmt::format("{} {} are fewer than {} ranks", size, what, ranks));
  }

  const std::vector<std::int64_t>& weight_sizes(const DescribedModule& module) const {
    return module_.tensors[*module.weight].sizes;
  }
  PlanFault about(FaultKind kind, std::size_t rule, const DescribedModule& module) const {
    auto fault = faults_.about(kind, rule, &module, module_);
    fault.mesh_dim = has_tp_ ? faults_.tensor_parallel_dims() : "";
    fault.mesh_dim_size = has_tp_ ? ranks_ : 0;
    return fault;
  }

  const ModuleDescription& module_;
  const PlanMesh& mesh_;
  const ParallelPlan& plan_;
  const ModelFacts& facts_;
  const std::vector<bool>& broken_;
  FaultCollector faults_;
  // A mesh without the tensor-parallel dimension is a fault told by others; the check goes on as on one rank.
  bool has_tp_ = false;
  std::vector<int> tp_;                 // the tensor-parallel mesh dimensions, in the order of the mesh
  std::vector<std::int64_t> tp_sizes_;  // theirs; empty where the mesh has none
  std::int64_t ranks_ = 1;              // along all of them
  std::vector<bool> usable_;  // per module
  LoweredPlan result_;
};

}  // namespace

LoweredPlan lower(const ModuleDescription& module, const PlanMesh& mesh, const ParallelPlan& plan,
                  const ModelFacts& facts, const std::vector<bool>& broken) {
  return Lowering(module, mesh, plan, facts, broken).run();
}

}  // namespace dtensor::detail
