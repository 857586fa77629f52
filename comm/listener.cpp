#include "comm/listener.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

namespace dtensor::detail {

namespace {

using Clock = std::chrono::steady_clock;

enum class Answer { accepted, not_yet, impossible };

// Nothing listens there so far, or no answer came in time (packets may be dropped): not yet.
Answer try_to_connect(const addrinfo& place, Clock::time_point deadline) {
  const int socket = ::socket(place.ai_family, place.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, place.ai_protocol);
  if (socket < 0) return Answer::impossible;
  int error = ::connect(socket, place.ai_addr, place.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{socket, POLLOUT, 0};
    socklen_t length = sizeof(error);
    if (::poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000))) <= 0)
      error = ETIMEDOUT;
    else
      ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  }
  ::close(socket);
  if (error == 0) return Answer::accepted;
  return error == ECONNREFUSED || error == ETIMEDOUT ? Answer::not_yet : Answer::impossible;
}

}  // namespace

void await_listener(const std::string& host, std::uint16_t port, std::chrono::steady_clock::time_point deadline) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> places(found, &::freeaddrinfo);
  while (Clock::now() < deadline) {
    bool may_come = false;
    for (const auto* place = places.get(); place; place = place->ai_next) {
      const auto answer = try_to_connect(*place, deadline);
      if (answer == Answer::accepted) return;
      may_come = may_come || answer == Answer::not_yet;
    }
    if (!may_come) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace dtensor::detail
