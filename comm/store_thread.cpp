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
  const auto patience = std::chrono::milliseconds(shared_->stuck ? 0 : 2000);
  const bool ended = shared_->changed.wait_for(lock, patience, [&] { return shared_->ended; });
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

bool StoreThread::is_stuck() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->stuck;
}

void StoreThread::set_stuck() {
  const std::lock_guard lock(shared_->mutex);
  shared_->stuck = true;
}

void StoreThread::loop(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds interval) {
  auto next = std::chrono::steady_clock::now();
  bool lost = false;
  std::unique_lock lock(shared->mutex);
  const auto unlocked = [&](const auto& call) {
    lock.unlock();
    try {
      call();
    } catch (const std::exception& error) {
      lost = true;
      shared->on_loss(error.what());
    }
    lock.lock();
    shared->stuck = false;
  };
  while (!shared->stop || !shared->tasks.empty()) {
    if (!shared->tasks.empty()) {
      Task task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
      unlocked([&] {
        task(lost ? nullptr : shared->store.get());
        task = nullptr;
      });
    } else if (lost) {
      shared->changed.wait(lock);
    } else if (std::chrono::steady_clock::now() >= next) {
      unlocked([&] { shared->periodic(*shared->store); });
      next = std::chrono::steady_clock::now() + interval;
    } else {
      shared->changed.wait_until(lock, next);
    }
  }
  shared->ended = true;
  shared->changed.notify_all();
}

}  // namespace dtensor::detail
