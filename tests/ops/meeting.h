// Where rank threads compare notes after each combination, apart from the library's own communication.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::brute {

class Meeting {
 public:
  explicit Meeting(std::size_t ranks) : notes_(ranks) {}

  // Hands in this rank's note and waits for the others'; nothing when one of them did not come within two seconds (it
  // waits in a collective that this rank left) or never will.
  std::optional<std::vector<std::string>> hold(std::size_t rank, std::string note) {
    std::unique_lock lock(mutex_);
    if (broken_) return std::nullopt;
    notes_[rank] = std::move(note);
    const auto round = round_;
    if (++arrived_ == notes_.size()) {
      arrived_ = 0;
      ++round_;
      agreed_ = notes_;
      changed_.notify_all();
      return agreed_;
    }
    const bool met =
        changed_.wait_for(lock, std::chrono::seconds(2), [&] { return round_ != round || broken_; });
    if (met && round_ != round) return agreed_;
    broken_ = true;
    changed_.notify_all();
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> notes_, agreed_;
  std::size_t arrived_ = 0, round_ = 0;
  bool broken_ = false;
};

}  // namespace dtensor::brute
