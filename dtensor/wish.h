// Wishes: what a parallel style wants where a tensor is consumed. The C++ frontend has no forward hooks, so a style
// leaves its input and output layouts at the parameter; the operators that read the parameter honour them.
#pragma once

#include "placements/placement.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

// The family of operators that honours a wish left at a parameter.
enum class WishFamily : std::uint8_t {
  matmul,     // matmul, linear, mm, addmm with this tensor (or its transpose) as the weight
  embedding,  // embedding with this tensor as the table
  norm,       // layer_norm, rms_norm with this tensor as the weight
};

// A placement wanted on one mesh dimension. Shard(-1) means the last dimension of the tensor it is applied to.
struct WishedPlacement {
  int mesh_dim;
  Placement placement;
  friend bool operator==(const WishedPlacement&, const WishedPlacement&) = default;
};

// States only the mesh dimensions that the style governs; the others pass untouched, forward and backward.
struct Wish {
  WishFamily family;
  std::vector<WishedPlacement> input;   // of the operand beside the parameter
  std::vector<WishedPlacement> output;  // of the result
  // The consumer makes a gradient of its input that is pending on the dimensions of `input` (colwise): the input's move
  // is then an autograd node even where nothing has to move, and its backward reduces.
  bool pending_gradient = false;
  friend bool operator==(const Wish&, const Wish&) = default;
};

// Immutable and shared: copied by pointer with the tensor. nullptr = none. A tied weight carries several families.
using Wishes = std::shared_ptr<const std::vector<Wish>>;

}  // namespace dtensor
