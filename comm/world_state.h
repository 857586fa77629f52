// What differs between worlds: ranks as threads, ranks as processes, a single rank. Private to comm/.
#pragma once

#include "comm/backend.h"

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace dtensor::detail {

class WorldState {
 public:
  virtual ~WorldState() = default;
  // The connections of one group of two or more ranks. Local: talks to the group's members alone, at its
  // first collective or now. Errors: MeshError when this world has no backend for the device type.
  virtual std::unique_ptr<Backend> make_backend(const GroupIdentity& group) = 0;
  // Errors: MeshError with the reason when ranks of this world cannot hold tensors on such devices.
  virtual void check_device(c10::DeviceType device_type) const = 0;
  virtual void post_abort(const std::string& text) noexcept = 0;
  virtual std::optional<std::string> abort_note() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  // Tells the peers that this rank ends in order, and gives them a moment to end, too. Called once, before the groups
  // are destroyed.
  virtual void leave() noexcept {}
};

// A world of one rank.
std::unique_ptr<WorldState> make_single_world_state(std::chrono::milliseconds timeout);

}  // namespace dtensor::detail
