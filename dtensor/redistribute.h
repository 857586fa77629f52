// Moving a tensor from one layout to another: runs the planner's steps on local tensors.
#pragma once

#include "dtensor/meta.h"

namespace dtensor::detail {

// The local tensor of `to`, from the local tensor of `from`; sizes are global. Runs below autograd and returns a
// contiguous tensor. With `may_alias` the result may share memory with `local` where nothing has to be copied (same
// layout, mesh dimensions of size 1); otherwise it never does.
at::Tensor move_local(const at::Tensor& local, const Layout* from, const Layout* to, c10::IntArrayRef sizes,
                      MeshState& mesh, bool may_alias);

// The same on a DTensor: a new DTensor without graph; `tensor` itself when it is placed so already.
at::Tensor move(const at::Tensor& tensor, const Layout* to);

// Differentiable: `tensor` itself when placed so already; the gradient comes back in tensor's placements, pending ones
// as Replicate.
at::Tensor redistribute(const at::Tensor& tensor, const Layout* to);

// A move that states only some mesh dimensions. Its backward brings the gradient on those dimensions back to the
// source's placement (pending: Replicate) and leaves the others as they are. Where nothing moves it is an identity whose
// backward still reduces. Used by wishes and constrain.
at::Tensor move_dims(const at::Tensor& tensor, const Layout* to, const std::vector<std::int64_t>& mesh_dims);

}  // namespace dtensor::detail
