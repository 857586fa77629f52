// One thing that is wrong with a plan: for people (text) and for programs (the rest).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

enum class FaultKind : std::uint8_t {
  // of the text
  syntax,  // no JSON; the text has line and column
  key,     // unknown, missing, repeated, or not for this style
  style,   // unknown style
  value,   // a value that its key does not take
  mesh,    // the plan's mesh against itself, the world or the mesh given
  // of the plan against a module
  no_match,       // a rule that matches no module
  matched_twice,  // a module that several rules match, none or two of them with "override"
  unsuitable,     // a style that does not suit the type of its module
  uncovered,      // a Linear that no rule names while others are cut
  heads,          // attention heads against the mesh
  kv_heads,       // key-value heads against the mesh
  vocabulary,     // an embedding's rows against the mesh
  sequence,       // the sequence length against the mesh
  batch,          // the batch size against the mesh
  empty_shard,    // a Linear with fewer features than ranks
  parts,          // packed parts that do not add up to the features
  layout,         // a consumer's layout that its producer does not give
  tied,           // one tensor with two placements
  unreachable,    // prepare_* on a module whose forward no style reaches
  applied_twice,  // the module is parallelised already
  ranks_differ,   // ranks hold different plans or modules
};

// "syntax", "key", ...
const char* to_string(FaultKind kind);

// What does not apply is empty.
struct PlanFault {
  FaultKind kind = FaultKind::value;
  std::optional<std::size_t> rule = {};  // from 0; texts count from 1
  std::string pattern = {};              // of that rule
  std::string module = {}, module_type = {};
  std::size_t more_modules = 0;          // others with the same fault by the same rule
  std::vector<std::int64_t> shape = {};  // global, of the module's weight
  std::string mesh_dim = {};
  std::int64_t mesh_dim_size = 0;
  std::string asked = {};    // what the plan asks for
  std::string nearest = {};  // the nearest valid choice
  std::string text = {};     // all of it in words

  std::string to_json() const;  // one object
};

// A JSON list of such objects.
std::string to_json(const std::vector<PlanFault>& faults);

namespace detail {
// Writes `text` from the other members and the problem.
PlanFault worded(PlanFault fault, const std::string& problem);
std::vector<std::string> texts(const std::vector<PlanFault>& faults);
}  // namespace detail

}  // namespace dtensor
