#include "parallelize/size_checks.h"

#include "parallelize/style_lowering.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace dtensor::detail {
namespace {

// Which weight dimension a style cuts.
std::int64_t cut_dim(StyleKind style, ModuleKind module) {
  const bool colwise = style == StyleKind::colwise || style == StyleKind::packed_colwise;
  if (module == ModuleKind::embedding)
    return style == StyleKind::colwise || style == StyleKind::embedding_colwise ? 1 : 0;
  return colwise ? 0 : 1;
}

std::int64_t stated(std::int64_t in_rule, const std::vector<std::pair<std::string, std::int64_t>>& facts,
                    const std::string& path) {
  if (in_rule != 0) return in_rule;
  for (const auto& [pattern, count] : facts)
    if (matches(pattern, path)) return count;
  return 0;
}

// The key-value heads that a Linear holds by its rule or by what the program knows; 0: not said.
std::int64_t kv_heads_of(const Style& style, const ModelFacts& facts, const DescribedModule& module) {
  return stated(style.kv_heads, facts.kv_heads, module.path);
}

// "2 or 4 ranks": the numbers of ranks nearest to `ranks`, below and above, that divide `heads`.
std::string nearest_ranks(std::int64_t ranks, std::int64_t heads) {
  std::int64_t below = ranks - 1, above = ranks + 1;
  while (below > 0 && heads % below != 0) --below;
  while (above <= heads && heads % above != 0) ++above;
  if (above > heads) return ranks_text(below);
  return below == 0 ? ranks_text(above) : fmt::format("{} or {}", below, ranks_text(above));
}

// How many of the leading mesh dimensions divide `heads` together, and how many ranks those have.
std::pair<std::size_t, std::int64_t> ranks_that_divide(const std::vector<std::int64_t>& sizes, std::int64_t heads) {
  std::size_t count = 0;
  std::int64_t ranks = 1;
  while (count < sizes.size() && heads % (ranks * sizes[count]) == 0) ranks *= sizes[count++];
  return {count, ranks};
}

class Checker {
 public:
  Checker(const SizeCheck& check, std::size_t rule, const DescribedModule& module, FaultCollector& faults)
      : check_(check),
        rule_(rule),
        module_(module),
        faults_(faults),
        style_(check.plan.rules[rule].style),
        features_(check.description.tensors[*module.weight]
                      .sizes[static_cast<std::size_t>(cut_dim(style_.kind, module.kind))]) {}

  bool run() {
    std::vector<std::int64_t> parts{features_};
    if (style_.kind == StyleKind::packed_colwise || style_.kind == StyleKind::packed_rowwise) {
      parts = packed_parts(style_, features_);
      if (!check_parts(parts)) return false;
    }
    if (module_.kind == ModuleKind::linear) check_heads(parts);
    if (!shares_kv_heads()) check_empty();
    return true;
  }

 private:
  bool shares_kv_heads() const { return dims_that_cut(check_, rule_, module_) < check_.tensor_parallel_sizes.size(); }

  void add(FaultKind kind, const std::string& asked, const std::string& nearest, const std::string& problem) {
    auto fault = faults_.about(kind, rule_, &module_, check_.description);
    fault.mesh_dim = faults_.tensor_parallel_dims();
    fault.mesh_dim_size = check_.ranks;
    fault.asked = asked;
    fault.nearest = nearest;
    faults_.add(std::move(fault), problem);
  }

  bool check_parts(const std::vector<std::int64_t>& parts) {
    if (check_.tensor_parallel_sizes.size() > 1) {
      add(FaultKind::parts, to_string(style_.kind), "one mesh dimension in \"tensor_parallel\".\"dim\", or a Linear for each part",
          "packed parts are cut over one mesh dimension, and the plan cuts over several");
      return false;
    }
    const auto sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
    const char* side = style_.kind == StyleKind::packed_colwise ? "output" : "input";
    if (sum != features_) {
      auto mended = parts;  // as many parts, the first takes the difference
      mended[0] += features_ - sum;
      add(FaultKind::parts, fmt::format("{} with parts [{}]", to_string(style_.kind), fmt::join(parts, ", ")),
          mended[0] > 0 ? fmt::format("parts [{}]", fmt::join(mended, ", "))
                        : fmt::format("parts that add up to {}", features_),
          fmt::format("the packed parts add up to {}, but the weight has {} {} features", sum, features_,
                      side));
      return false;
    }
    if (style_.parts.empty() && features_ % 2 != 0) {
      add(FaultKind::parts, fmt::format("{} with two equal parts (none are stated)", to_string(style_.kind)),
          "state \"parts\"", fmt::format("{} {} features have no two equal parts", features_, side));
      return false;
    }
    return true;
  }

  void check_heads(const std::vector<std::int64_t>& parts) {
    const auto heads = stated(style_.heads, check_.facts.heads, module_.path);
    const auto kv_heads = kv_heads_of(style_, check_.facts, module_);
    if (heads != 0) check_heads_of(FaultKind::heads, "attention heads", heads, parts.front());
    if (style_.share_kv_heads && kv_heads == 0)
      add(FaultKind::kv_heads, "share_kv_heads", "\"kv_heads\": how many the module has",
          "which heads ranks share depends on how many there are, and nothing says so");
    if (kv_heads == 0 || shares_kv_heads()) return;
    // A plain Linear holds the key or value heads alone; a packed one after the first part.
    check_heads_of(FaultKind::kv_heads, "key-value heads", kv_heads, parts.back());
  }

  void check_heads_of(FaultKind kind, const char* what, std::int64_t heads, std::int64_t features) {
    const auto ranks = check_.ranks;
    const auto asked = fmt::format("{} of {} {}", to_string(style_.kind), heads, what);
    if (heads % ranks != 0) {
      auto nearest = nearest_ranks(ranks, heads);
      if (kind == FaultKind::kv_heads && style_.kind == StyleKind::colwise)
        nearest += fmt::format(", or \"share_kv_heads\": true: every rank then holds {}", shared_heads(heads));
      add(kind, asked, nearest,
          fmt::format("{} {} do not divide by {} ranks, so some rank would hold part of a head. Choose a "
                      "tensor-parallel "
                      "size that divides {} (or a model whose head count is a multiple of {})",
                      heads, what, ranks, heads, ranks));
    } else if (features % heads != 0) {
      auto fewer = heads;
      while (features % fewer != 0) --fewer;
      add(kind, asked, fmt::format("{} heads", fewer),
          fmt::format("{} features do not divide by {} {}", features, heads, what));
    }
  }

  // "all 2", or "1 of them" where leading mesh dimensions divide them.
  std::string shared_heads(std::int64_t heads) const {
    const auto ranks = ranks_that_divide(check_.tensor_parallel_sizes, heads).second;
    return ranks == 1 ? fmt::format("all {}", heads) : fmt::format("{} of them", heads / ranks);
  }

  void check_empty() {
    if (features_ >= check_.ranks) return;
    const bool vocabulary = module_.kind == ModuleKind::embedding && cut_dim(style_.kind, module_.kind) == 0;
    const char* what = vocabulary ? "vocabulary entries" : "features";
    add(vocabulary ? FaultKind::vocabulary : FaultKind::empty_shard,
        fmt::format("{} over {} {}", to_string(style_.kind), features_, what),
        ranks_text(features_),
        fmt::format("{} {} are fewer than the ranks", features_, what));
  }

  const SizeCheck& check_;
  const std::size_t rule_;
  const DescribedModule& module_;
  FaultCollector& faults_;
  const Style& style_;
  const std::int64_t features_;
};

}  // namespace

std::string ranks_text(std::int64_t ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

std::size_t dims_that_cut(const SizeCheck& check, std::size_t rule, const DescribedModule& module) {
  const Style& style = check.plan.rules[rule].style;
  const auto all = check.tensor_parallel_sizes.size();
  if (!style.share_kv_heads || style.kind != StyleKind::colwise || module.kind != ModuleKind::linear) return all;
  const auto kv_heads = kv_heads_of(style, check.facts, module);
  return kv_heads == 0 ? all : ranks_that_divide(check.tensor_parallel_sizes, kv_heads).first;
}

bool check_sizes(const SizeCheck& check, std::size_t rule, const DescribedModule& module,
                 FaultCollector& faults) {
  const Style& style = check.plan.rules[rule].style;
  if (!cuts(style.kind) || !module.weight) return true;
  return Checker(check, rule, module, faults).run();
}

}  // namespace dtensor::detail
