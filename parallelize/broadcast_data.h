// One rank of a tensor-parallel group reads the data; the others get it.
#pragma once

#include "comm/device_mesh.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor {

// The tensors of `data` named by `keys`, on every rank of this rank's group along `mesh_dim`: plain tensors of their
// own on the mesh's device, without graph. Coordinate 0 of the group has them, on any device; on the others `data` is
// empty, or holds tensors of the same names and types, whose values do not count. Further names in `data` are left
// alone. Named after Megatron-LM's tensor_parallel.broadcast_data: there, too, the sizes travel. For a batch of a 2-D
// job: distribute_batch(result["tokens"], mesh).
//
// Three collectives, whatever the number of keys: the lengths and then the texts of what each rank asks for and has,
// and all values in one broadcast. They run below autograd.
//
// Errors: DesyncError, on all ranks of the group with the same text and before any value is sent, where ranks ask for
// different keys or types, where coordinate 0, or another rank that brings data, lacks a key, or where a tensor has
// another type than `dtype` or is a DTensor; it names every such rank, key and type. MeshError for a rank outside the
// mesh and for an unknown mesh dimension.
std::map<std::string, at::Tensor> broadcast_data(const std::vector<std::string>& keys,
                                                 const std::map<std::string, at::Tensor>& data,
                                                 at::ScalarType dtype, const DeviceMesh& mesh,
                                                 const std::string& mesh_dim = "tp");

}  // namespace dtensor
