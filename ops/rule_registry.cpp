#include "ops/rule.h"
#include "ops/rule_tables.h"
#include "placements/error.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace dtensor {
namespace {

std::unordered_map<std::string, RuleEntry>& table() {
  static std::unordered_map<std::string, RuleEntry> rules;
  return rules;
}

void fill() {
  detail::add_pointwise_rules();
  detail::add_copy_rules();
  detail::add_matrix_rules();
  detail::add_added_product_rules();
  detail::add_linear_algebra_rules();
  detail::add_diagonal_rules();
  detail::add_fourier_rules();
  detail::add_distance_rules();
  detail::add_view_rules();
  detail::add_reduction_rules();
  detail::add_statistics_rules();
  detail::add_normalization_rules();
  detail::add_convolution_rules();
  detail::add_pooling_rules();
  detail::add_resampling_rules();
  detail::add_pixel_rules();
  detail::add_batch_normalization_rules();
  detail::add_group_normalization_rules();
  detail::add_softmax_rules();
  detail::add_loss_rules();
  detail::add_classification_loss_rules();
  detail::add_ctc_loss_rules();
  detail::add_cross_entropy_rules();
  detail::add_linear_cross_entropy_rules();
  detail::add_embedding_rules();
  detail::add_attention_rules();
  detail::add_join_split_rules();
  detail::add_rearranging_rules();
  detail::add_sorting_rules();
  detail::add_indexing_rules();
  detail::add_scatter_rules();
  detail::add_flat_scatter_rules();
  detail::add_factory_rules();
  detail::add_random_rules();
  detail::add_random_choice_rules();
}

// "aten::add_.Tensor" -> "aten::add.Tensor"; unchanged when the operator is not an in-place variant.
std::string functional_name(const std::string& name) {
  const auto dot = name.find('.');
  const auto end = dot == std::string::npos ? name.size() : dot;
  if (end == 0 || name[end - 1] != '_' || (end > 1 && name[end - 2] == '_')) return name;
  return name.substr(0, end - 1) + name.substr(end);
}

const std::unordered_map<std::string, RuleEntry>& filled() {
  static const bool once = (fill(), true);
  (void)once;
  return table();
}

std::mutex mutex;     // of what follows and, once it is filled, the table
bool in_use = false;  // a rule was asked for: operators keep what they were told

}  // namespace

namespace detail {
void add_rule(const std::string& name, RuleEntry entry) { table()[name] = entry; }
}  // namespace detail

void register_rule(const std::string& name, RuleEntry entry) {
  static_cast<void>(filled());
  const std::lock_guard lock(mutex);
  if (in_use)
    throw UnsupportedError("register_rule(\"" + name + "\"): operators have been taken up already; call it before the first mesh is made");
  detail::add_rule(name, entry);
}
void register_rule(const std::string& name, RuleFunction function) { register_rule(name, RuleEntry{function}); }

const RuleEntry* find_rule(const std::string& name) {
  const auto& rules = filled();
  const std::lock_guard lock(mutex);
  in_use = true;
  auto found = rules.find(name);
  if (found == rules.end()) found = rules.find(functional_name(name));
  return found == rules.end() ? nullptr : &found->second;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : filled()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dtensor
