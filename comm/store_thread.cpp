#include "comm/store_thread.h"

namespace dtensor::detail {

StoreThread::StoreThread(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds interval,
                         std::function<void(c10d::Store&)> periodic,
                         std::function<void(const std::string&)> on_loss)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  shared_->periodic = std::move(periodic);
  shared_->on_loss = std::move(on_loss);
  thread_ = std::thread([shared = shared_, interval] { loop(shared, interval); });
}

StoreThread::~StoreThread() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, std::chrono::seconds(2), [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void StoreThread::submit(Task task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.push_back(std::move(task));
  shared_->changed.notify_all();
}

void StoreThread::loop(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds interval) {
  auto next = std::chrono::steady_clock::now();
  std::unique_lock lock(shared->mutex);
  while (!shared->stop || !shared->tasks.empty()) {
    if (!shared->tasks.empty()) {
      const Task task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
      lock.unlock();
      task(shared->lost ? nullptr : shared->store.get());
      lock.lock();
    } else if (!shared->lost && std::chrono::steady_clock::now() >= next) {
      lock.unlock();
      try {
        shared->periodic(*shared->store);
      } catch (const std::exception& error) {
        shared->lost = true;  // read by this thread alone
        shared->on_loss(error.what());
      }
      next = std::chrono::steady_clock::now() + interval;
      lock.lock();
    } else if (shared->lost) {
      shared->changed.wait(lock);
    } else {
      shared->changed.wait_until(lock, next);
    }
  }
  shared->ended = true;
  shared->changed.notify_all();
}

}  // namespace dtensor::detail
