// What a rank knows of its peers through the store: beats, the abort note, who has left. Private to comm/.
#pragma once

#include "comm/process_world.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <mutex>

namespace dtensor::detail {

// How many collectives a rank has issued on each group, by the group's key.
using Issued = std::map<std::string, std::int64_t>;

struct Beat {
  std::int64_t tick = 0;  // grows as long as the rank's process runs
  Issued issued;
};

// Shared with the store thread, which may outlive the world when the store does not answer.
class Watch {
 public:
  Watch(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  // ---- on the store thread ----
  void beat(c10d::Store& store);  // writes this rank's beat, reads the news
  void read_news(c10d::Store& store);
  void post_abort(c10d::Store& store, const std::string& text);
  // Notes that this rank has left; returns how many have by now.
  std::int64_t post_left(c10d::Store& store);
  static std::vector<Beat> read_beats(c10d::Store& store, const std::vector<std::int64_t>& ranks);
  void set_lost(const std::string& text);

  // ---- on any thread ----
  void stop_beating() { beating_ = false; }
  std::shared_ptr<GroupProgress> add_progress(const std::string& key);
  bool has_alarm() const { return alarm_.load(std::memory_order_acquire); }
  std::optional<std::string> abort_note() const;
  // The beat with which a rank left.
  std::optional<Beat> left(std::int64_t rank) const;
  std::optional<std::string> lost() const;

 private:
  std::string beat_text() const;

  const int rank_, world_size_;
  std::atomic<bool> beating_{true};
  std::int64_t tick_ = 0;       // of the store thread
  std::int64_t news_read_ = 0;  // of the store thread

  std::atomic<bool> alarm_{false};  // one of the three below is there
  mutable std::mutex mutex_;
  std::optional<std::string> abort_note_;
  std::map<std::int64_t, Beat> left_;
  std::optional<std::string> lost_;
  std::vector<std::weak_ptr<GroupProgress>> groups_;
};

}  // namespace dtensor::detail
