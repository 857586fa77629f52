#include "comm/listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>

namespace dtensor::detail {

namespace {

enum class Answer { accepted, refused, impossible };

Answer try_to_connect(const addrinfo& place) {
  const int socket = ::socket(place.ai_family, place.ai_socktype | SOCK_CLOEXEC, place.ai_protocol);
  if (socket < 0) return Answer::impossible;
  const int failed = ::connect(socket, place.ai_addr, place.ai_addrlen);
  const int why = errno;
  ::close(socket);
  return failed == 0 ? Answer::accepted : why == ECONNREFUSED ? Answer::refused : Answer::impossible;
}

}  // namespace

void await_listener(const std::string& host, std::uint16_t port, std::chrono::steady_clock::time_point deadline) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> places(found, &::freeaddrinfo);
  while (std::chrono::steady_clock::now() < deadline) {
    bool refused = false;
    for (const auto* place = places.get(); place; place = place->ai_next) {
      const auto answer = try_to_connect(*place);
      if (answer == Answer::accepted) return;
      refused = refused || answer == Answer::refused;
    }
    if (!refused) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace dtensor::detail
