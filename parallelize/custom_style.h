// Styles of a program's own: how the tensors of one type of module are placed, under a name that plans use.
//
//   register_style("expert_bank", {.tensors = {{"up", Shard(0)}, {"down", Shard(0)}}, .input = Replicate()});
//   ... {"match": "blocks.*.experts", "style": "expert_bank"}
#pragma once

#include "parallelize/plan.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

// Placements along the tensor-parallel mesh dimension.
struct CustomStyle {
  // Of the module's own parameters and buffers, by name: Shard, Interleaved or Replicate. What is not named is whole.
  std::map<std::string, Placement> tensors = {};
  // What the module's input and output are brought to. They reach the modules that prepare_input and prepare_output reach:
  // stock ones, children of a Sequential, and those that declare the points (parallelize/points.h).
  std::optional<Placement> input = {}, output = {};
  friend bool operator==(const CustomStyle&, const CustomStyle&) = default;
};

// Before plans with this style are read; on every rank alike. Errors: PlanError for a name that is taken by another style.
void register_style(const std::string& name, CustomStyle style);

// A registered style, for plans in code. Errors: PlanError for an unknown name.
Style RegisteredStyle(const std::string& name);

namespace detail {
std::optional<CustomStyle> find_custom_style(const std::string& name);
std::vector<std::string> custom_style_names();
// The name in plans and messages.
std::string style_name(const Style& style);
// All of a style in one line: ranks that registered it otherwise are told apart.
std::string to_text(const CustomStyle& style);
}  // namespace detail

}  // namespace dtensor
