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

enum class StyleKind : std::uint8_t { colwise, rowwise, sequence_parallel };

// One style. Layouts are those of PyTorch's classes of the same name: placements on the tensor-parallel mesh dimension
// (one entry). Unset = the style's default.
struct Style {
  StyleKind kind = StyleKind::colwise;
  std::optional<Placement> input;   // layout of the module's input
  std::optional<Placement> output;  // layout of the module's output
  std::int64_t sequence_dim = 1;    // sequence_parallel
  friend bool operator==(const Style&, const Style&) = default;
};

// Linear: weight Shard(0), bias Shard(0). Input Replicate, output left sharded on its last dimension.
// Embedding: weight Shard(1) (hidden size).
Style ColwiseParallel(std::optional<Placement> input = {}, std::optional<Placement> output = {});
// Linear: weight Shard(1), bias Replicate. Input Shard(-1), output Replicate.
// Embedding: weight Shard(0) (vocabulary). Output Replicate.
Style RowwiseParallel(std::optional<Placement> input = {}, std::optional<Placement> output = {});
// LayerNorm, RMSNorm, Dropout: parameters Replicate, input Shard(sequence_dim).
Style SequenceParallel(std::int64_t sequence_dim = 1);

struct PlanRule {
  std::string match;  // module path pattern: `*` one path component, `{a,b}` alternatives
  Style style;
  friend bool operator==(const PlanRule&, const PlanRule&) = default;
};

struct DataParallel {
  std::string dim = "dp";
  std::string mode = "replicate";
  std::int64_t batch_dim = 0;
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
  std::string tensor_parallel_dim = "tp";
  std::vector<PlanRule> rules;
  std::optional<DataParallel> data_parallel;
  std::optional<Policy> policy;

  // Errors: PlanError with every fault (line and column for syntax, rule number and nearest valid key otherwise).
  static ParallelPlan from_file(const std::string& path);
  static ParallelPlan from_json(const std::string& text);
  std::string to_json() const;  // reads back equal

  // The mesh this plan asks for, over the whole world, for CPU tensors (make_mesh in parallelize_module.h takes others).
  DeviceMesh make_mesh(World& world) const;

  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;
};

// Whether a module path matches a pattern: `*` is one component and never crosses a dot, `{a,b}` are alternatives.
// Errors: PlanError for unbalanced braces.
bool matches(const std::string& pattern, const std::string& path);

}  // namespace dtensor
