// OperatorCall: one call of an operator as a rule sees it: global shapes, layouts and arguments, no values.
#pragma once

#include "placements/layout.h"

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dtensor {

// One tensor among the arguments; tensor lists are spread out in order.
struct Operand {
  const Layout* layout = nullptr;  // nullptr: a plain tensor (its value is the same on all ranks), or none at all
  c10::IntArrayRef sizes;          // global
  c10::IntArrayRef strides;        // global
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::int16_t argument = 0;       // index in the schema
  std::int16_t element = -1;       // position in its list, or -1
  bool defined = false;            // false: None or an undefined tensor
  bool written = false;            // the operator writes to it

  std::int64_t ndim() const { return static_cast<std::int64_t>(sizes.size()); }
  bool is_cut(std::int64_t dim) const { return layout && !layout->mesh_dims_cutting(dim).empty(); }
  // On one mesh dimension; Replicate for a plain tensor.
  Placement placement(int mesh_dim) const { return layout ? layout->placement(mesh_dim) : Placement(); }
};

// Views only: valid during the call.
struct OperatorCall {
  const std::string& name;                   // "aten::add.Tensor"
  std::span<const Operand> operands;
  std::span<const c10::IValue> arguments;    // as in the schema, tensors included
  const MeshLayout* mesh;

  const Operand& operand(std::size_t index) const { return operands[index]; }
  const c10::IValue& argument(std::size_t index) const { return arguments[index]; }
  // A dimension argument counted from the front.
  static std::int64_t wrap_dim(std::int64_t dim, std::int64_t ndim) {
    return dim < 0 ? dim + (ndim == 0 ? 1 : ndim) : dim;
  }
  // "aten::add.Tensor(self [4, 8] [Shard(0)], other [8] plain) on (tp=2) on cpu": for error texts.
  std::string to_string() const;
};

}  // namespace dtensor
