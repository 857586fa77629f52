#include "parallelize/plan.h"

#include "placements/error.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace dtensor {

const char* to_string(StyleKind kind) {
  switch (kind) {
    case StyleKind::colwise:
      return "colwise";
    case StyleKind::rowwise:
      return "rowwise";
    case StyleKind::sequence_parallel:
      return "sequence_parallel";
    case StyleKind::replicate:
      return "replicate";
    case StyleKind::prepare_input:
      return "prepare_input";
    case StyleKind::prepare_output:
      return "prepare_output";
    case StyleKind::prepare_input_output:
      return "prepare_input_output";
    case StyleKind::packed_colwise:
      return "packed_colwise";
    case StyleKind::packed_rowwise:
      return "packed_rowwise";
    case StyleKind::embedding_rowwise:
      return "embedding_rowwise";
    case StyleKind::embedding_colwise:
      return "embedding_colwise";
    case StyleKind::custom:
      return "custom";
  }
  return "?";
}

namespace {

Style style(StyleKind kind, std::optional<Placement> input = {}, std::optional<Placement> output = {}) {
  Style result;
  result.kind = kind;
  result.input = input;
  result.output = output;
  return result;
}

}  // namespace

Style ColwiseParallel(std::optional<Placement> input, std::optional<Placement> output) {
  return style(StyleKind::colwise, input, output);
}
Style RowwiseParallel(std::optional<Placement> input, std::optional<Placement> output) {
  return style(StyleKind::rowwise, input, output);
}
Style SequenceParallel(std::int64_t sequence_dim) {
  Style result = style(StyleKind::sequence_parallel);
  result.sequence_dim = sequence_dim;
  return result;
}
Style ReplicateParallel(std::optional<Placement> input, std::optional<Placement> output) {
  return style(StyleKind::replicate, input, output);
}
Style PrepareModuleInput(std::optional<Placement> input, Placement desired) {
  Style result = style(StyleKind::prepare_input, input);
  result.desired_input = desired;
  return result;
}
Style PrepareModuleOutput(std::optional<Placement> output, Placement desired) {
  Style result = style(StyleKind::prepare_output, {}, output);
  result.desired_output = desired;
  return result;
}
Style PrepareModuleInputOutput(std::optional<Placement> input, Placement desired_input,
                               std::optional<Placement> output, Placement desired_output) {
  Style result = style(StyleKind::prepare_input_output, input, output);
  result.desired_input = desired_input;
  result.desired_output = desired_output;
  return result;
}
Style PackedColwise(std::vector<std::int64_t> parts, std::optional<Placement> output) {
  Style result = style(StyleKind::packed_colwise, {}, output);
  result.parts = std::move(parts);
  return result;
}
Style PackedRowwise(std::vector<std::int64_t> parts, std::optional<Placement> output) {
  Style result = style(StyleKind::packed_rowwise, {}, output);
  result.parts = std::move(parts);
  return result;
}
Style EmbeddingRowwise(std::optional<Placement> output) {
  return style(StyleKind::embedding_rowwise, {}, output);
}
Style EmbeddingColwise(std::optional<Placement> output) {
  return style(StyleKind::embedding_colwise, {}, output);
}

namespace {

[[noreturn]] void unbalanced(const std::string& pattern) {
  throw PlanError({"the pattern \"" + pattern + "\" has unbalanced braces; alternatives are written {a,b}"});
}

// Throws unless every { has its }.
void check_braces(const std::string& pattern) {
  int depth = 0;
  for (const char letter : pattern) {
    depth += letter == '{' ? 1 : letter == '}' ? -1 : 0;
    if (depth < 0) unbalanced(pattern);
  }
  if (depth != 0) unbalanced(pattern);
}

struct Alternatives {
  std::vector<std::string> texts;
  std::size_t end;  // one past the closing brace
};

// Reads the alternatives of the brace that opens at pattern[0]. Nested braces stay in the texts.
Alternatives read_alternatives(std::string_view pattern) {
  Alternatives found{{""}, 1};
  for (int depth = 1;; ++found.end) {
    const char letter = pattern[found.end];
    depth += letter == '{' ? 1 : letter == '}' ? -1 : 0;
    if (depth == 0) break;
    if (letter == ',' && depth == 1) {
      found.texts.emplace_back();
    } else {
      found.texts.back() += letter;
    }
  }
  ++found.end;
  return found;
}

// A pattern whose braces are balanced as all patterns without braces that it stands for.
void expand(const std::string& pattern, std::vector<std::string>& expanded) {
  const auto brace = pattern.find('{');
  if (brace == std::string::npos) {
    expanded.push_back(pattern);
    return;
  }
  const Alternatives alternatives = read_alternatives(std::string_view(pattern).substr(brace));
  const auto before = pattern.substr(0, brace), after = pattern.substr(brace + alternatives.end);
  for (const auto& text : alternatives.texts) expand(before + text + after, expanded);
}

// `at_start`: the position begins a path component. No braces.
bool match_from(std::string_view pattern, std::string_view path, bool at_start) {
  while (!pattern.empty()) {
    if (pattern.starts_with("**")) {
      const std::string_view rest = pattern.substr(2);
      // A whole component: it stands for none (its dot goes too) or several.
      if (at_start && rest.starts_with('.') && match_from(rest.substr(1), path, true)) return true;
      const bool whole = at_start && (rest.empty() || rest[0] == '.');
      for (std::size_t taken = whole ? 1 : 0; taken <= path.size(); ++taken) {
        const bool starts = taken == 0 ? at_start : path[taken - 1] == '.';
        if (match_from(rest, path.substr(taken), starts)) return true;
      }
      return false;
    }
    if (pattern[0] == '*') {
      // Before a dot or the end it takes the rest of the component; a whole component is never empty.
      const bool takes_rest = pattern.size() == 1 || pattern[1] == '.';
      const std::size_t component = std::min(path.find('.'), path.size());
      if (takes_rest && at_start && component == 0) return false;
      for (std::size_t taken = takes_rest ? component : 0; taken <= component; ++taken) {
        if (match_from(pattern.substr(1), path.substr(taken), at_start && taken == 0)) return true;
      }
      return false;
    }
    if (path.empty() || pattern[0] != path[0]) return false;
    at_start = pattern[0] == '.';
    pattern.remove_prefix(1);
    path.remove_prefix(1);
  }
  return path.empty();
}

}  // namespace

PathPattern::PathPattern(const std::string& pattern) {
  check_braces(pattern);
  expand(pattern, alternatives_);
}

bool PathPattern::matches(const std::string& path) const {
  return std::any_of(alternatives_.begin(), alternatives_.end(),
                     [&](const std::string& pattern) { return match_from(pattern, path, true); });
}

bool matches(const std::string& pattern, const std::string& path) { return PathPattern(pattern).matches(path); }

}  // namespace dtensor
