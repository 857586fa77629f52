// DTensor: the public type and the functions that make one, move one and read one.
// Names and semantics follow PyTorch's torch.distributed.tensor; docs/semantics.md says where they differ.
#pragma once

#include "comm/device_mesh.h"
#include "placements/layout.h"
#include "placements/placement.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

struct LocalOptions {
  // How the gradient of the local tensor is placed. Unset: like the tensor (pending: Replicate). Must be set for a
  // Replicate dimension of size > 1 on a tensor that requires grad, because ranks may compute different gradients.
  std::optional<Placements> grad_placements = {};
};

struct RedistributeOptions {};  // reserved: async

struct DistributeOptions {
  // The coordinate along each mesh dimension whose values count and are sent; nothing = every rank's own values are
  // trusted to be equal, and nothing is sent.
  std::optional<int> source = 0;
};

struct FromLocalOptions {
  // Global sizes, where known; saves the exchange of local sizes.
  std::optional<std::vector<std::int64_t>> global_sizes = {};
  // All ranks hold equally large shards: global = local * ranks, without an exchange.
  bool even = false;
};

// A tensor on a mesh, seen globally. Adds no data to at::Tensor: converting costs nothing.
class DTensor : public at::Tensor {
 public:
  // Errors: UnsupportedError when `tensor` is no DTensor.
  explicit DTensor(at::Tensor tensor);

  DeviceMesh mesh() const;
  Placements placements() const;  // one per mesh dimension; dimensions never negative
  const Layout& layout() const;

  // This rank's part, sharing its memory and version. Differentiable.
  // Errors: UnsupportedError when the gradient's placement must be stated (see LocalOptions), PlacementError.
  at::Tensor to_local(LocalOptions options = {}) const;
  // The whole value on every rank, a plain tensor. Its gradient counts as Replicate.
  at::Tensor full_tensor() const;
  // The same tensor placed otherwise; *this itself when it is placed so already. Differentiable.
  // Errors: PlacementError (count of placements, dimension out of range).
  DTensor redistribute(Placements to, RedistributeOptions options = {}) const;
};

bool is_dtensor(const at::Tensor& tensor);
DTensor as_dtensor(const at::Tensor& tensor);                  // Errors: UnsupportedError when it is none
std::optional<DTensor> try_dtensor(const at::Tensor& tensor);

// Places a full tensor: each rank keeps a copy of its part. Differentiable, also from non-leaves.
// Errors: PlacementError, MeshError for a tensor on another device type than the mesh's.
DTensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh, Placements placements,
                          DistributeOptions options = {});
// Wraps this rank's part (shares its memory). Differentiable; the gradient of a pending tensor is Replicate.
// Errors: PlacementError on all ranks when shard sizes do not follow the chunk rule (pieces of ceil(n/k)).
DTensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements, FromLocalOptions options = {});
// This data-parallel coordinate's part of a batch: from_local with Shard(0) on `dp` and Replicate elsewhere.
DTensor distribute_batch(const at::Tensor& part, const DeviceMesh& mesh, const std::string& dp = "dp");

// Factories; `sizes` are global. Ranks outside the mesh get an empty tensor of no use but to be destroyed.
DTensor zeros(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
DTensor ones(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
DTensor empty(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
DTensor full(c10::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh, Placements placements,
             at::TensorOptions options = {});
// Uniform in [0, 1) and standard normal, by global element index: the same values on any mesh and placement.
DTensor rand(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
DTensor randn(c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
// Integers in [low, high), and the numbers 0..n-1 in random order; int64 unless `options` say otherwise.
DTensor randint(std::int64_t low, std::int64_t high, c10::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements,
                at::TensorOptions options = at::kLong);
DTensor randperm(std::int64_t n, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = at::kLong);

// Places a tensor at this point of a program; itself when it is placed so. Consumers of one tensor share the move.
at::Tensor constrain(const at::Tensor& tensor, Placements placements);

// Makes a custom kernel a citizen: `function` runs on local tensors of inputs brought to `in_placements`; its results
// are wrapped with `out_placements`. Gradients flow through the local tensors; the gradient of an input that is
// Replicate on a dimension where others are cut is a pending sum unless `grad_placements` says otherwise.
struct LocalRegionOptions {
  std::optional<std::vector<Placements>> grad_placements = {};  // per input
};
std::vector<at::Tensor> local_region(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const std::vector<Placements>& in_placements,
    const std::vector<Placements>& out_placements, LocalRegionOptions options = {});

namespace detail {
// The interned layout for placements on a tensor of `ndim` dimensions. Errors: PlacementError.
const Layout* layout_for(const DeviceMesh& mesh, const Placements& placements, std::int64_t ndim);
}  // namespace detail

}  // namespace dtensor
