// Waiting for another process to listen.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dtensor::detail {

// Returns once a TCP connection to this place is accepted, at the deadline, or at once where it is not refused but impossible
// (an unknown name, no route): whoever connects next says why. c10d's own client waits half a second and more between its
// attempts, and rank 0 is seldom the first to be ready.
void await_listener(const std::string& host, std::uint16_t port, std::chrono::steady_clock::time_point deadline);

}  // namespace dtensor::detail
