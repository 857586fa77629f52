// Waiting for a peer that does not listen yet.
#include <comm/listener.h>
#include <catch2/catch_test_macros.hpp>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

using namespace std::chrono_literals;
using dtensor::detail::await_listener;
using Clock = std::chrono::steady_clock;

namespace {

// A socket bound to a free port of this host, which refuses connections until it listens.
struct Port {
  Port() : socket(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(place);
    REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&place), length) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&place), &length) == 0);
    number = ntohs(place.sin_port);
  }
  ~Port() { ::close(socket); }
  int socket;
  std::uint16_t number = 0;
};

}  // namespace

TEST_CASE("await_listener returns once somebody listens") {
  const Port port;
  const auto start = Clock::now();
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    ::listen(port.socket, 1);
  });
  await_listener("127.0.0.1", port.number, start + 60s);
  const auto waited = Clock::now() - start;
  later.join();
  CHECK(waited >= 90ms);
  CHECK(waited < 30s);
}

TEST_CASE("await_listener gives up at the deadline, and at once where no address is known") {
  const Port port;
  const auto start = Clock::now();
  await_listener("127.0.0.1", port.number, start + 200ms);
  CHECK(Clock::now() - start >= 200ms);
  const auto again = Clock::now();
  await_listener("no such host", port.number, again + 60s);
  CHECK(Clock::now() - again < 30s);
}
