// parallelize_module: an ordinary, already-built torch::nn::Module becomes tensor parallel by a plan.
#pragma once

#include "comm/device_mesh.h"
#include "parallelize/plan.h"

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

struct ApplyOptions {
  // Along each mesh dimension the values of this coordinate win, buffers too; nothing = every rank's own values are
  // trusted to be equal and nothing is sent.
  std::optional<int> source = 0;
  // Attention heads by module path pattern, where the program knows them: {"blocks.*.attn.{wq,wk,wv}", 12}. A colwise
  // cut must give each rank whole heads, so the count must be a multiple of the tensor-parallel size.
  std::vector<std::pair<std::string, std::int64_t>> heads;
};

// What became of one parameter or buffer.
struct AppliedTensor {
  std::string name;                   // path of the first owner
  std::vector<std::string> aliases;   // other paths of a tied parameter
  std::vector<std::int64_t> sizes, local_sizes;
  Placements placements;
  std::int64_t bytes = 0, local_bytes = 0;
  std::string rule;                   // the pattern that governs it; "" = Replicate by default
  bool buffer = false;
};

struct ApplyReport {
  std::vector<AppliedTensor> tensors;
  std::vector<std::string> notes;     // registered parameters that no forward can read, and the like
  std::int64_t bytes() const;         // of all tensors, once
  std::int64_t local_bytes() const;   // on this rank
  std::int64_t replicated_bytes() const;  // of tensors that every rank holds whole
  std::string to_string() const;      // a table
};

// The mesh a plan asks for, over the whole world. One size of -1 is what is left.
// Errors: PlanError when the plan has no mesh; MeshError when it does not fit the world.
DeviceMesh make_mesh(const ParallelPlan& plan, World& world, c10::DeviceType device_type = c10::DeviceType::CPU);

// Turns every parameter and buffer of `module` into a DTensor on the whole mesh, in place (optimizers keep their
// parameters), leaves the styles' wishes at the parameters and installs gradient synchronisation. The plan's policy becomes
// the World's; without one, plain tensors are `replicate_checked`.
// Errors: PlanError with all faults, before anything changes and before any communication: a rule that matches nothing, a
// module matched twice, a style that does not suit its module, tied parameters placed differently, heads that do not
// divide, a plan's mesh that disagrees with `mesh`, a module parallelised before. MeshError for an unknown dimension.
ApplyReport parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                               ApplyOptions options = {});

}  // namespace dtensor
