// "bucket_mb": "auto": how large the buckets of gradients are made.
#pragma once

#include "comm/device_mesh.h"

namespace dtensor::detail {

// Megabytes at which the latency of an all-reduce over `mesh_dim` is a tenth of the time that the bytes take, between 1 and
// 100: larger ones gain little, and start later. Measured here by a few all-reduces; what the mesh's first rank finds holds
// for all. A collective call of all ranks of the mesh; takes some milliseconds.
double measured_bucket_mb(const DeviceMesh& mesh, int mesh_dim);

}  // namespace dtensor::detail
