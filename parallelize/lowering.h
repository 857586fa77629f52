// Lowering: from rules over module paths to placements and wishes of single tensors, and what is wrong with the plan on
// the way. No communication, no tensor is read: a module's description and the sizes of the mesh are all it needs.
#pragma once

#include "dtensor/wish.h"
#include "parallelize/module_description.h"
#include "parallelize/plan_check.h"
#include "parallelize/plan_fault.h"
#include "parallelize/points.h"

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

// One tensor of the module with everything the plan says about it.
struct LoweredTensor {
  DescribedTensor source;
  Placements placements;  // on the whole mesh
  std::vector<Wish> wishes;
  std::optional<std::size_t> rule;  // that places it
};

// A module whose input or output is brought somewhere without a parameter to leave the wish at.
struct LoweredPoint {
  std::size_t module;  // index in the description
  bool by_sequential;  // through its Sequential, not by constrain
  std::vector<PreparedPoint> points;
};

struct LoweredPlan {
  std::vector<LoweredTensor> tensors;
  std::vector<LoweredPoint> points;
  std::vector<std::string> notes;
  std::vector<PlanFault> faults;
};

// `broken`: rules whose style is not to be looked at (ReadPlan); empty = none.
LoweredPlan lower(const ModuleDescription& module, const PlanMesh& mesh, const ParallelPlan& plan,
                  const ModelFacts& facts, const std::vector<bool>& broken = {});

}  // namespace dtensor::detail
