// The nearest valid word to a misspelt one, for fault texts.
#pragma once

#include <string>
#include <vector>

namespace dtensor::detail {

// The candidate with the fewest single-letter edits, or "" when none is near (more than a third of the
// letters differ). The first wins a tie.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// "; did you mean "colwise"?", or "" when nothing is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace dtensor::detail
