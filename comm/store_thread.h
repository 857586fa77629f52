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
  // Calls `periodic` on the thread every `interval`, until it throws (the store is lost; `on_loss` gets the text).
  StoreThread(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds interval,
              std::function<void(c10d::Store&)> periodic, std::function<void(const std::string&)> on_loss);
  // Ends the thread; leaves it behind when the store does not answer.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // The result of `task` on the thread, or nothing when it threw or did not return in time. The task may outlive the
  // call, so it holds what it needs by value.
  template <typename Result>
  std::optional<Result> run(std::function<Result(c10d::Store&)> task, std::chrono::milliseconds patience) {
    auto promise = std::make_shared<std::promise<std::optional<Result>>>();
    auto answer = promise->get_future();
    submit([promise, task = std::move(task)](c10d::Store* store) {
      try {
        promise->set_value(store ? std::optional<Result>(task(*store)) : std::nullopt);
      } catch (const std::exception&) {
        promise->set_value(std::nullopt);
      }
    });
    if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
    return answer.get();
  }

 private:
  using Task = std::function<void(c10d::Store*)>;  // called with nullptr when the store is lost
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool stop = false, ended = false, lost = false;
    c10::intrusive_ptr<c10d::Store> store;
    std::function<void(c10d::Store&)> periodic;
    std::function<void(const std::string&)> on_loss;
  };
  void submit(Task task);
  static void loop(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds interval);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace dtensor::detail
