#include "parallelize/did_you_mean.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>

namespace dtensor::detail {
namespace {

char lower(char letter) { return static_cast<char>(std::tolower(static_cast<unsigned char>(letter))); }

// Levenshtein distance, blind to case and to - versus _.
std::size_t edits(const std::string& a, const std::string& b) {
  const auto letter = [](char c) { return c == '-' ? '_' : lower(c); };
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (letter(a[i]) == letter(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edits(word, candidate);
    if (distance >= fewest) continue;
    fewest = distance;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string candidate = nearest(word, candidates);
  return candidate.empty() ? "" : "; did you mean \"" + candidate + "\"?";
}

}  // namespace dtensor::detail
