#include "parallelize/style_names.h"

#include "parallelize/custom_style.h"

namespace dtensor::detail {

std::optional<Style> style_of_name(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(StyleKind::embedding_colwise); ++i) {
    const auto kind = static_cast<StyleKind>(i);
    if (name != to_string(kind)) continue;
    Style style;
    style.kind = kind;
    return style;
  }
  Style style;
  if (name == "colwise_rep" || name == "colwise_gather_output") return ColwiseParallel({}, Replicate());
  if (name == "rowwise_rep" || name == "rowwise_split_input") return RowwiseParallel(Replicate());
  if (const auto custom = find_custom_style(name)) {
    style.kind = StyleKind::custom;
    style.custom = name;
    style.desired_input = custom->input;
    style.desired_output = custom->output;
    return style;
  }
  // Hugging Face reduces these gradients by a hook; here every pending gradient is reduced.
  if (name == "replicated_with_grad_allreduce")
    style.kind = StyleKind::replicate;
  else if (name == "prepare_module_input")
    style.kind = StyleKind::prepare_input;
  else if (name == "prepare_module_output")
    style.kind = StyleKind::prepare_output;
  else if (name == "prepare_module_input_output")
    style.kind = StyleKind::prepare_input_output;
  else
    return std::nullopt;
  return style;
}

std::vector<std::string> keys_of_style(StyleKind kind) {
  switch (kind) {
    case StyleKind::colwise:
      return {"input", "output", "heads", "kv_heads", "share_kv_heads"};
    case StyleKind::rowwise:
      return {"input", "output", "heads", "kv_heads"};
    case StyleKind::sequence_parallel:
      return {"output", "sequence_dim"};
    case StyleKind::replicate:
      return {"input", "output"};
    case StyleKind::prepare_input:
      return {"input", "desired_input"};
    case StyleKind::prepare_output:
      return {"output", "desired_output"};
    case StyleKind::prepare_input_output:
      return {"input", "desired_input", "output", "desired_output"};
    case StyleKind::packed_colwise:
    case StyleKind::packed_rowwise:
      return {"parts", "output", "heads", "kv_heads"};
    case StyleKind::embedding_rowwise:
    case StyleKind::embedding_colwise:
      return {"output"};
    case StyleKind::custom:
      return {};
  }
  return {};
}

std::vector<std::string> required_keys_of_style(StyleKind kind) {
  if (kind == StyleKind::prepare_input) return {"desired_input"};
  if (kind == StyleKind::prepare_output) return {"desired_output"};
  if (kind == StyleKind::prepare_input_output) return {"desired_input", "desired_output"};
  return {};
}

}  // namespace dtensor::detail
