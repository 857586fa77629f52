// One thread that owns a connection to the store: a store call can hang when rank 0's process is stopped, and nobody
// who waits for peers may hang with it. Private to comm/.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace dtensor::detail {

class StoreThread {
 public:
  // Calls `periodic` on the thread every `interval`, until it or a task throws: the store is then lost, `on_loss` gets
  // the text, and nothing is asked of it any more.
  StoreThread(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds interval,
              std::function<void(c10d::Store&)> periodic, std::function<void(const std::string&)> on_loss);
  // Ends the thread; leaves it behind when the store does not answer.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // The result of `task` on the thread, or nothing when it threw or did not return in time; nothing at once while an
  // earlier call hangs. The task may outlive this call, so it holds what it needs by value.
  template <typename Result>
  std::optional<Result> run(std::function<Result(c10d::Store&)> task, std::chrono::milliseconds patience) {
    if (is_stuck()) return std::nullopt;
    auto promise = std::make_shared<std::promise<std::optional<Result>>>();
    auto answer = promise->get_future();
    submit([promise, task = std::move(task)](c10d::Store* store) {
      try {
        promise->set_value(store ? std::optional<Result>(task(*store)) : std::nullopt);
      } catch (...) {
        promise->set_value(std::nullopt);
        throw;
      }
    });
    if (answer.wait_for(patience) == std::future_status::ready) return answer.get();
    set_stuck();
    return std::nullopt;
  }

 private:
  using Task = std::function<void(c10d::Store*)>;  // called with nullptr when the store is lost
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool stop = false, ended = false;
    bool stuck = false;  // the call under way was given up by who waited for it
    c10::intrusive_ptr<c10d::Store> store;
    std::function<void(c10d::Store&)> periodic;
    std::function<void(const std::string&)> on_loss;
  };
  void submit(Task task);
  bool is_stuck() const;
  void set_stuck();
  static void loop(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds interval);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace dtensor::detail
