// What a sharded kernel may know besides its local tensors.
#pragma once

#include "comm/device_mesh.h"
#include "ops/decision.h"
#include "placements/shard_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <vector>

namespace dtensor {

struct KernelContext {
  const c10::OperatorHandle& op;
  std::span<const Operand> operands;             // global sizes; layouts before the moves
  const Decision& decision;                      // layouts after the moves
  detail::MeshState& mesh;
  std::span<const c10::IValue> global_arguments; // as the caller gave them

  const Layout* layout(std::size_t operand) const { return decision.operands[operand]; }
  std::span<const std::int64_t> coordinate() const { return mesh.coordinate; }
  // Global indices of one dimension of an operand held by this rank.
  std::vector<shard_math::Interval> intervals(std::size_t operand, std::int64_t dim) const {
    return shard_math::local_intervals(*layout(operand), dim, operands[operand].sizes[static_cast<std::size_t>(dim)],
                                       mesh.coordinate);
  }
  // Runs the stock operator on the arguments on the stack, below autograd and autocast.
  void call_stock(std::vector<c10::IValue>& stack) const;
  // Whether an operand is cut in a dimension, counted from the front.
  bool is_cut(std::size_t operand, std::int64_t dim) const { return !layout(operand)->mesh_dims_cutting(dim).empty(); }
  // The tensors of all ranks that hold a piece of `dim` of an operand, alike in size, stacked in a new first dimension in
  // the order of their pieces; and which of them is this rank's. Not for interleaved cuts, whose pieces have no order.
  at::Tensor gather_pieces(const at::Tensor& tensor, std::size_t operand, std::int64_t dim) const;
  std::int64_t piece(std::size_t operand, std::int64_t dim) const;
  // Reduces `tensor` in place over every mesh dimension that cuts one of `dims` of `operand`.
  void all_reduce(at::Tensor& tensor, ReduceOp op, std::size_t operand, std::span<const std::int64_t> dims) const;
};

// Float at least, as LibTorch's kernels compute.
inline at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

// An argument of type Tensor?.
inline at::Tensor optional_tensor(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

}  // namespace dtensor
