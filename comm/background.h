// A blocking call on a thread of its own, which may be left behind when nobody wants its result any more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace dtensor::detail {

class Background {
 public:
  // `call` holds what it needs: it may outlive this object.
  explicit Background(std::function<void()> call) : shared_(std::make_shared<Shared>()) {
    std::thread([shared = shared_, call = std::move(call)]() mutable {
      std::exception_ptr error;
      try {
        call();
      } catch (...) {
        error = std::current_exception();
      }
      call = nullptr;
      const std::lock_guard lock(shared->mutex);
      shared->error = error;
      shared->done = true;
      shared->changed.notify_all();
    }).detach();
  }

  bool wait_for(std::chrono::milliseconds slice) const {
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, slice, [&] { return shared_->done; });
  }
  bool is_done() const { return wait_for(std::chrono::milliseconds(0)); }
  // Once done. Errors: what the call threw.
  void rethrow() const {
    if (shared_->error) std::rethrow_exception(shared_->error);
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace dtensor::detail
