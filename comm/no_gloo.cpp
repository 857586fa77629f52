// Stands in for gloo.cpp in a build without Gloo's headers.
#include "comm/process_world.h"
#include "placements/error.h"

namespace dtensor::detail {

bool has_gloo() { return false; }

std::unique_ptr<Backend> make_gloo_backend(std::shared_ptr<ProcessWorld>, const GroupIdentity&) {
  throw MeshError("this build has no Gloo backend: configure with Gloo's headers (libgloo-dev)");
}

}  // namespace dtensor::detail
