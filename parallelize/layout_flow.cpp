#include "parallelize/layout_flow.h"

#include "parallelize/custom_style.h"
#include "parallelize/style_lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace dtensor::detail {
namespace {

bool is_last_dim(const Placement& placement) { return placement.is_sharded() && placement.dim() == -1; }

// Cut on a dimension that is not the last: by sequence, or whatever the plan calls so.
bool is_stream_cut(const Placement& placement) { return placement.is_shard() && placement.dim() >= 0; }

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

class Flow {
 public:
  Flow(const ModuleDescription& description, const ParallelPlan& plan, const RuleAssignment& rules,
       const std::vector<bool>& usable, std::int64_t ranks, FaultCollector& faults)
      : description_(description),
        plan_(plan),
        rules_(rules),
        usable_(usable),
        ranks_(ranks),
        faults_(faults) {
    for (std::size_t i = 0; i < description.modules.size(); ++i)
      siblings_[parent_of(description.modules[i].path)].push_back(i);
  }

  void run() {
    for (std::size_t i = 0; i < description_.modules.size(); ++i) {
      if (!style(i)) continue;
      if (description_.modules[i].in_sequential)
        check_in_sequential(i);
      else if (style(i)->kind == StyleKind::rowwise || style(i)->kind == StyleKind::packed_rowwise)
        check_rowwise(i);
      else
        check_stream(i);
    }
  }

 private:
  // The style of a module whose rule can be relied on.
  const Style* style(std::size_t module) const {
    return usable_[module] && rules_.rule_of[module] ? &plan_.rules[*rules_.rule_of[module]].style : nullptr;
  }
  ModuleKind kind(std::size_t module) const { return description_.modules[module].kind; }
  std::optional<Placement> given(std::size_t module) const {
    if (!style(module)) return std::nullopt;
    auto layout = given_output(*style(module), kind(module));
    if (!layout && style(module)->kind == StyleKind::packed_colwise) return packed_layout(module, 0);
    return layout;
  }
  std::optional<Placement> expected(std::size_t module) const {
    if (style(module)->kind == StyleKind::packed_rowwise) return packed_layout(module, 1);
    return expected_input(*style(module), kind(module));
  }
  Placement packed_layout(std::size_t module, std::size_t dim) const {
    const auto& sizes = description_.tensors[*description_.modules[module].weight].sizes;
    return Interleaved(-1, packed_parts(*style(module), sizes[dim]));
  }

  void fault(std::size_t consumer, const Placement& wanted, const std::string& producer,
             const Placement& gives, const std::string& nearest) {
    auto fault = faults_.about(FaultKind::layout, rules_.rule_of[consumer], &description_.modules[consumer],
                               description_);
    fault.mesh_dim = faults_.tensor_parallel_dims();
    fault.mesh_dim_size = ranks_;
    fault.asked = fmt::format("input {}", wanted.to_string());
    fault.nearest = nearest;
    faults_.add(std::move(fault), fmt::format("its input is expected {}, but {} gives {}", wanted.to_string(),
                                              producer, gives.to_string()));
  }

  std::string named(std::size_t module) const {
    return fmt::format("module \"{}\" (rule {}, {})", description_.modules[module].path,
                       *rules_.rule_of[module] + 1, style_name(*style(module)));
  }

  std::string mended(std::size_t consumer, const Placement& gives) const {
    if (style(consumer)->kind == StyleKind::rowwise && gives.is_replicate())
      return "style rowwise_split_input here, or an output that stays Shard(-1) there";
    if (style(consumer)->kind == StyleKind::sequence_parallel && is_stream_cut(gives))
      return fmt::format("\"sequence_dim\": {}", gives.dim());
    return fmt::format("\"input\": [\"{}\"] here, or \"output\": [\"{}\"] there", gives.to_string(),
                       expected(consumer)->to_string());
  }

  void check_in_sequential(std::size_t consumer) {
    const auto wanted = expected(consumer);
    if (!wanted) return;
    const auto& siblings = siblings_.at(parent_of(description_.modules[consumer].path));
    std::optional<std::size_t> producer;
    for (const auto sibling : siblings) {
      if (sibling == consumer) break;
      const bool passes = kind(sibling) == ModuleKind::no_parameters && !given(sibling);
      if (!passes) producer = sibling;
    }
    if (!producer) return;
    const auto gives = given(*producer);
    // Entering a cut of the stream from a whole one is free; a rowwise input is another matter: the plan expects its
    // producer to have cut it.
    if (!gives || *gives == *wanted || (gives->is_replicate() && is_stream_cut(*wanted))) return;
    fault(consumer, *wanted, named(*producer), *gives, mended(consumer, *gives));
  }

  void check_rowwise(std::size_t consumer) {
    if (kind(consumer) != ModuleKind::linear) return;
    const auto wanted = expected(consumer);
    std::vector<std::size_t> producers;
    for (const auto sibling : siblings_.at(parent_of(description_.modules[consumer].path))) {
      if (sibling == consumer) break;
      if (kind(sibling) != ModuleKind::linear) continue;
      const bool ends = !producers.empty() && style(producers.back()) && is_rowwise(producers.back());
      if (ends) producers.clear();
      producers.push_back(sibling);
    }
    for (const auto producer : producers) {
      const auto gives = given(producer);
      if (!gives || *gives == *wanted) continue;
      // A packed QKV or gate-up is taken apart on the way; its pieces come out cut on the last dimension.
      if (gives->is_interleaved() && is_last_dim(*wanted)) continue;
      return fault(consumer, *wanted, named(producer), *gives, mended(consumer, *gives));
    }
  }

  bool is_rowwise(std::size_t module) const {
    return style(module)->kind == StyleKind::rowwise || style(module)->kind == StyleKind::packed_rowwise;
  }

  void check_stream(std::size_t consumer) {
    const auto wanted = expected(consumer);
    if (!wanted || kind(consumer) == ModuleKind::embedding) return;
    const bool norm = style(consumer)->kind == StyleKind::sequence_parallel;
    if (norm && !is_stream_cut(*wanted)) return;
    if (!norm && !style(consumer)->input) return;
    if (!norm) {
      if (const auto before = norm_before(consumer)) {
        if (*given(*before) != *wanted)
          fault(consumer, *wanted, named(*before), *given(*before), mended(consumer, *given(*before)));
        return;
      }
    }
    std::optional<std::size_t> other;
    for (const auto writer : stream_writers()) {
      const auto gives = given(writer);
      if (*gives == *wanted) {
        if (!norm) return;
      } else if (!other && (!norm || is_stream_cut(*gives))) {
        other = writer;
      }
    }
    if (other) fault(consumer, *wanted, named(*other), *given(*other), mended(consumer, *given(*other)));
  }

  // The first module per layout in which the residual stream is written.
  const std::vector<std::size_t>& stream_writers() {
    if (stream_writers_) return *stream_writers_;
    stream_writers_.emplace();
    for (std::size_t i = 0; i < description_.modules.size(); ++i) {
      if (!writes_stream(i) || !given(i)) continue;
      const auto same = [&](std::size_t known) { return *given(known) == *given(i); };
      if (std::none_of(stream_writers_->begin(), stream_writers_->end(), same)) stream_writers_->push_back(i);
    }
    return *stream_writers_;
  }

  // What is added to the residual stream: rowwise Linears and embeddings.
  bool writes_stream(std::size_t module) const {
    if (!style(module)) return false;
    if (kind(module) == ModuleKind::embedding)
      return cuts(style(module)->kind) && !is_last_dim(*given(module));
    return is_rowwise(module) && !description_.modules[module].in_sequential;
  }

  // The norm whose output a Linear most likely reads: the last one before it.
  std::optional<std::size_t> norm_before(std::size_t module) const {
    for (std::size_t i = module; i-- > 0;)
      if (kind(i) == ModuleKind::norm) return style(i) && given(i) ? std::optional(i) : std::nullopt;
    return std::nullopt;
  }

  const ModuleDescription& description_;
  const ParallelPlan& plan_;
  const RuleAssignment& rules_;
  const std::vector<bool>& usable_;
  const std::int64_t ranks_;
  FaultCollector& faults_;
  std::map<std::string, std::vector<std::size_t>> siblings_;
  std::optional<std::vector<std::size_t>> stream_writers_;
};

}  // namespace

void check_layouts(const ModuleDescription& description, const ParallelPlan& plan,
                   const RuleAssignment& rules, const std::vector<bool>& usable, std::int64_t ranks,
                   FaultCollector& faults) {
  Flow(description, plan, rules, usable, ranks, faults).run();
}

}  // namespace dtensor::detail
