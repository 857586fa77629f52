// ParallelPlan: what a user asks for, in code or in JSON (docs/plan-format.md). Pure data and text; applying it to a
// module is parallelize_module's work.
#pragma once

#include "comm/policy.h"
#include "placements/placement.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

class DeviceMesh;
class World;

enum class StyleKind : std::uint8_t {
  colwise,
  rowwise,
  sequence_parallel,
  replicate,
  prepare_input,
  prepare_output,
  prepare_input_output,
  packed_colwise,
  packed_rowwise,
  embedding_rowwise,
  embedding_colwise,
  custom,  // one of the program's own (parallelize/custom_style.h)
};

// The name in plans and messages: "colwise", ...
const char* to_string(StyleKind kind);

// One style. Layouts are those of PyTorch's classes of the same name: placements on the tensor-parallel mesh dimension
// (one entry). Unset = the style's default.
struct Style {
  StyleKind kind = StyleKind::colwise;
  std::optional<Placement> input;  // layout in which the module's input comes
  std::optional<Placement>
      output;  // layout of the module's output; under prepare_output the one in which it comes
  std::int64_t sequence_dim = 1;                           // sequence_parallel
  std::optional<Placement> desired_input, desired_output;  // prepare_*: what input and output are brought to
  std::vector<std::int64_t> parts;  // packed_*: sizes of the packed parts, in order; empty = two equal ones
  // Attention heads in the cut dimension, so that every rank gets whole ones; 0 = not said. For packed QKV: of the
  // first part, and of the others.
  std::int64_t heads = 0, kv_heads = 0;
  // colwise, key or value projections: where the ranks do not divide kv_heads, the weight is cut over the leading
  // tensor-parallel mesh dimensions only, as many as divide kv_heads: the ranks along the others hold the same heads (with
  // one mesh dimension, all of them). Grouped-query attention takes the heads that the rank's query heads read.
  bool share_kv_heads = false;
  std::string custom = "";  // custom: the name it is registered under
  friend bool operator==(const Style&, const Style&) = default;
};

// Linear: weight Shard(0), bias Shard(0). Input Replicate, output left sharded on its last dimension.
// Embedding: weight Shard(1) (hidden size).
Style ColwiseParallel(std::optional<Placement> input = {}, std::optional<Placement> output = {});
// Linear: weight Shard(1), bias Replicate. Input Shard(-1) (Replicate: it is split here), output Replicate.
// Embedding: weight Shard(0) (vocabulary). Output Replicate.
Style RowwiseParallel(std::optional<Placement> input = {}, std::optional<Placement> output = {});
// LayerNorm, RMSNorm, GroupNorm, Dropout: parameters Replicate, input Shard(sequence_dim).
Style SequenceParallel(std::int64_t sequence_dim = 1);
// Parameters whole; nothing is moved unless a layout is stated.
Style ReplicateParallel(std::optional<Placement> input = {}, std::optional<Placement> output = {});
// The module's input comes as `input` and is brought to `desired`. Reaches modules whose forward reads a parameter of a
// stock operator, children of a Sequential, and modules that declare the point (parallelize/points.h).
Style PrepareModuleInput(std::optional<Placement> input, Placement desired);
Style PrepareModuleOutput(std::optional<Placement> output, Placement desired);
Style PrepareModuleInputOutput(std::optional<Placement> input, Placement desired_input,
                               std::optional<Placement> output, Placement desired_output);
// A Linear whose output features are several weights in one (QKV, gate-up): each part is cut alone, so that a rank
// holds its piece of every part. Weight and bias Interleaved(0, parts), output Interleaved(-1, parts).
Style PackedColwise(std::vector<std::int64_t> parts = {}, std::optional<Placement> output = {});
// The same for input features: weight Interleaved(1, parts), input Interleaved(-1, parts).
Style PackedRowwise(std::vector<std::int64_t> parts = {}, std::optional<Placement> output = {});
// Embedding by vocabulary: weight Shard(0), output Replicate unless stated (Shard(1): reduced and cut by sequence at
// once).
Style EmbeddingRowwise(std::optional<Placement> output = {});
// Embedding by hidden size: weight Shard(1), output left sharded on its last dimension unless stated.
Style EmbeddingColwise(std::optional<Placement> output = {});

struct PlanRule {
  std::string match;  // module path pattern: `*` one path component, `**` any, `{a,b}` alternatives
  Style style;
  bool override_others = false;  // wins over the other rules that match a module ("override" in JSON)
  friend bool operator==(const PlanRule&, const PlanRule&) = default;
};

// What becomes of a Linear that no rule names while a rule cuts another.
enum class Uncovered : std::uint8_t { error, replicate };

struct DataParallel {
  std::string dim = "dp";
  std::string mode = "replicate";
  std::int64_t batch_dim = 0;
  // Gradients are reduced together up to this many megabytes. bucket_mb_auto ("auto" in JSON): from latency and bandwidth,
  // measured when the plan is applied. Then the last bits of sums may change from run to run with the network.
  static constexpr double bucket_mb_auto = 0;
  double bucket_mb = 25;
  std::string reduce_dtype = "";  // "" = the gradient's own
  friend bool operator==(const DataParallel&, const DataParallel&) = default;
};

struct PlanMesh {
  std::vector<std::string> names;
  std::vector<std::int64_t> shape;  // one entry may be -1
  friend bool operator==(const PlanMesh&, const PlanMesh&) = default;
};

struct ParallelPlan {
  std::optional<PlanMesh> mesh;
  // The styles cut over these mesh dimensions together, in the order of the mesh. More than one: for grouped-query
  // attention with fewer key-value heads than ranks (Style::share_kv_heads).
  std::vector<std::string> tensor_parallel_dims = {"tp"};
  std::vector<PlanRule> rules;
  Uncovered uncovered = Uncovered::error;
  std::optional<DataParallel> data_parallel;
  std::optional<Policy> policy;

  // Errors: PlanError with every fault (line and column for syntax, rule number and nearest valid key otherwise).
  static ParallelPlan from_file(const std::string& path);
  // Also takes Hugging Face's plans, as from_hugging_face: an object without "version" whose values are all strings.
  static ParallelPlan from_json(const std::string& text);
  // Hugging Face's tp_plan: {"model.layers.*.self_attn.q_proj": "colwise", ...}. Modules that it does not name stay
  // whole.
  static ParallelPlan from_hugging_face(const std::string& text);
  std::string to_json() const;  // reads back equal

  // The mesh this plan asks for, over the whole world, for CPU tensors (make_mesh in parallelize_module.h takes
  // others).
  DeviceMesh make_mesh(World& world) const;

  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;
};

// Whether a module path matches a pattern: `*` is one component and never crosses a dot (at least one letter where it
// is all of the component), `**` is any number of components, none included ("**.w" matches "w" and "a.b.w"; "a.**"
// matches all below "a"), `{a,b}` are alternatives. Errors: PlanError for unbalanced braces.
bool matches(const std::string& pattern, const std::string& path);
// The same of one pattern and many paths.
class PathPattern {
 public:
  explicit PathPattern(const std::string& pattern);
  bool matches(const std::string& path) const;

 private:
  std::vector<std::string> alternatives_;  // without braces
};

}  // namespace dtensor
