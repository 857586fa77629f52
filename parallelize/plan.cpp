#include "parallelize/plan.h"

#include "placements/error.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace dtensor {

Style ColwiseParallel(std::optional<Placement> input, std::optional<Placement> output) {
  return {StyleKind::colwise, input, output, 1};
}

Style RowwiseParallel(std::optional<Placement> input, std::optional<Placement> output) {
  return {StyleKind::rowwise, input, output, 1};
}

Style SequenceParallel(std::int64_t sequence_dim) {
  return {StyleKind::sequence_parallel, std::nullopt, std::nullopt, sequence_dim};
}

namespace {

[[noreturn]] void unbalanced(const std::string& pattern) {
  throw PlanError({"the pattern \"" + pattern + "\" has unbalanced braces; alternatives are written {a,b}"});
}

// Throws unless every { has its }. Returns nothing: alternatives are read while matching.
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

// `at_start`: the position begins a path component. Braces are balanced.
bool match_from(std::string_view pattern, std::string_view path, bool at_start) {
  while (!pattern.empty()) {
    if (pattern[0] == '{') {
      const Alternatives alternatives = read_alternatives(pattern);
      const std::string rest(pattern.substr(alternatives.end));
      return std::any_of(alternatives.texts.begin(), alternatives.texts.end(),
                         [&](const std::string& text) { return match_from(text + rest, path, at_start); });
    }
    if (pattern[0] == '*') {
      // A component is never empty, so a `*` that stands for a whole one needs a letter.
      const bool whole = at_start && (pattern.size() == 1 || pattern[1] == '.');
      const std::size_t component = std::min(path.find('.'), path.size());
      for (std::size_t taken = whole ? 1 : 0; taken <= component; ++taken) {
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

bool matches(const std::string& pattern, const std::string& path) {
  check_braces(pattern);
  return match_from(pattern, path, true);
}

}  // namespace dtensor
