// What one style means for one module: placements of its tensors, wishes at its weight, layouts it takes and gives.
#pragma once

#include "dtensor/wish.h"
#include "parallelize/module_description.h"
#include "parallelize/plan.h"

#include <optional>
#include <vector>

namespace dtensor::detail {

// Whether a style has a meaning for this kind of module; in words what it is for.
bool suits(StyleKind style, ModuleKind module);
const char* suited_modules(StyleKind style);

// Whether a style cuts the weight of its module.
bool cuts(StyleKind style);

struct LoweredStyle {
  Placement weight, bias;  // on each tensor-parallel mesh dimension
  std::optional<Wish> wish;
};

// Requires suits(). `parts`: of a packed weight (packed_parts); `tp`: the mesh dimensions, all placed alike.
LoweredStyle lower_style(const Style& style, ModuleKind module, const std::vector<std::int64_t>& parts,
                         const std::vector<int>& tp);

// The parts of a packed style on `features`: those stated, else two halves.
std::vector<std::int64_t> packed_parts(const Style& style, std::int64_t features);

// The layout in which a module under this style expects its input to come, where it matters or the plan states it;
// and in which it gives its output, where that is known. Shard(-1) is the last dimension.
std::optional<Placement> expected_input(const Style& style, ModuleKind module);
std::optional<Placement> given_output(const Style& style, ModuleKind module);

}  // namespace dtensor::detail
