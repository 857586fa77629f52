// The names that a plan's "style" may have: this project's, PyTorch's and Hugging Face's.
#pragma once

#include "parallelize/plan.h"

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

// The style of a name, with the layouts that the name implies ("colwise_rep": output Replicate); nothing for an unknown
// one. Aliases: prepare_module_input and the like (PyTorch); colwise_rep, colwise_gather_output, rowwise_rep,
// rowwise_split_input, replicated_with_grad_allreduce (Hugging Face).
std::optional<Style> style_of_name(const std::string& name);

// The rule keys that a style takes beside "match", "style" and "override"; those it cannot do without.
std::vector<std::string> keys_of_style(StyleKind kind);
std::vector<std::string> required_keys_of_style(StyleKind kind);

}  // namespace dtensor::detail
