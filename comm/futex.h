// Waiting on a word that processes share. std::atomic::wait is not for that: its futex is private to one process, and
// its waiters are counted in tables of the process.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace dtensor::detail {

// Sleeps until the word is woken, as long as it still has `value`, at most `patience`. May return early for no reason.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::microseconds patience) {
  const auto count = patience.count();
  const timespec limit{static_cast<time_t>(count / 1000000), static_cast<long>(count % 1000000 * 1000)};
  ::syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr,
            nullptr, 0);
}

}  // namespace dtensor::detail
