#include "comm/pump.h"

namespace dtensor::detail {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds glance{2};
constexpr int glances = 50;  // without finding anything, until the thread sleeps again

}  // namespace

void Pump::add(const std::shared_ptr<Pumped>& pumped) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pumped_, [](const auto& weak) { return weak.expired(); });
  pumped_.push_back(pumped);
}

std::vector<std::shared_ptr<Pumped>> Pump::all() {
  std::vector<std::shared_ptr<Pumped>> result;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : pumped_) {
    if (auto pumped = weak.lock()) result.push_back(std::move(pumped));
  }
  return result;
}

bool Pump::pump_others(const Pumped* self) {
  bool pending = false;
  for (const auto& pumped : all()) {
    if (pumped.get() == self || !pumped->is_pending()) continue;
    pumped->pump();
    pending = pending || pumped->is_pending();
  }
  return pending;
}

void Pump::wake() {
  const std::lock_guard lock(mutex_);
  if (stop_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  looks_.store(true);
  changed_.notify_all();
}

void Pump::loop() {
  int idle = 0;
  while (!stop_) {
    std::shared_ptr<Pumped> unattended;
    for (const auto& pumped : all()) {
      if (!pumped->is_pending() || pumped->has_waiter()) continue;
      pumped->pump();
      if (pumped->is_pending()) unattended = pumped;
    }
    if (unattended) {
      idle = 0;
      unattended->doze(glance);
      continue;
    }
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (++idle < glances) {
      changed_.wait_for(lock, glance, [&] { return stop_.load(); });
    } else {
      idle = 0;
      looks_.store(false);
      changed_.wait(lock, [&] { return stop_.load() || looks_.load(); });
    }
  }
}

void Pump::finish(std::chrono::milliseconds patience) noexcept {
  try {
    const auto deadline = Clock::now() + patience;
    while (pump_others(nullptr) && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } catch (...) {  // an orderly end is a courtesy to the peers
  }
  stop();
}

void Pump::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace dtensor::detail
