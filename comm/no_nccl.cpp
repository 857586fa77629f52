// Stands in for nccl.cpp in a build without NCCL's and CUDA's headers.
#include "comm/process_world.h"
#include "placements/error.h"

namespace dtensor::detail {

bool has_nccl() { return false; }

std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<ProcessWorld>, const GroupIdentity&) {
  throw MeshError(
      "this build has no NCCL backend: configure with a CUDA build of LibTorch and the headers of CUDA "
      "and NCCL");
}

}  // namespace dtensor::detail
