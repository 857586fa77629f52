// Keeps asynchronous work going that no caller drives. Private to comm/.
//
// Shared memory has no engine of its own: a collective advances when some thread of its rank steps it. The caller who
// waits does, first of all what he waits for, then whatever else is under way on this rank; a thread does for those who
// compute meanwhile. It sleeps until there is something, and then looks every two milliseconds, so that calls which are
// waited for at once never pay for waking it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dtensor::detail {

// Something with work under way.
class Pumped {
 public:
  virtual ~Pumped() = default;
  virtual bool is_pending() const = 0;
  virtual bool has_waiter() const = 0;  // whose thread steps it
  // Goes on as far as possible without waiting. Failures are kept for those who wait.
  virtual void pump() noexcept = 0;
  // Sleeps until a peer did something, not longer than `patience`.
  virtual void doze(std::chrono::microseconds patience) = 0;
};

class Pump {
 public:
  Pump() = default;
  ~Pump() { stop(); }
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  void add(const std::shared_ptr<Pumped>& pumped);
  // Something is pending and its caller may go away.
  void notice() {
    if (!looks_.load(std::memory_order_relaxed)) wake();
  }
  // Steps all others; whether one of them is pending still.
  bool pump_others(const Pumped* self);
  // Goes on until nothing is pending, not longer than `patience`; then ends the thread.
  void finish(std::chrono::milliseconds patience) noexcept;

 private:
  void wake();
  void stop() noexcept;
  void loop();
  std::vector<std::shared_ptr<Pumped>> all();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Pumped>> pumped_;
  std::thread thread_;
  std::atomic<bool> looks_{false};  // the thread looks every two milliseconds
  std::atomic<bool> stop_{false};
};

}  // namespace dtensor::detail
