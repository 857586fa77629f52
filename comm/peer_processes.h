// Where the ranks' processes run, and whether one of this host has ended. Private to comm/.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace dtensor::detail {

// What a rank tells the others of itself: its process number and where it counts. Ranks with the same `place` can open
// each other's memory: one kernel (boot id), one space of process numbers (containers may have their own), one user.
struct ProcessPlace {
  std::int64_t process = 0;
  std::string place;

  static ProcessPlace own();
  std::string to_text() const;
  static ProcessPlace from_text(const std::string& text);
};

class PeerProcesses {
 public:
  explicit PeerProcesses(std::vector<ProcessPlace> places);
  ~PeerProcesses();
  PeerProcesses(const PeerProcesses&) = delete;
  PeerProcesses& operator=(const PeerProcesses&) = delete;

  // Whether all these ranks run in one place.
  bool together(const std::vector<std::int64_t>& ranks) const;
  const std::string& place(std::int64_t rank) const { return places_[static_cast<std::size_t>(rank)].place; }
  // Begins to watch a process, so that its number cannot come to mean another one.
  void watch(std::int64_t rank) { has_ended(rank); }
  // Whether the process of a rank of this place has ended, even while nobody has asked for its exit status. False where
  // the system cannot tell.
  bool has_ended(std::int64_t rank);

 private:
  std::vector<ProcessPlace> places_;
  std::mutex mutex_;
  std::vector<int> files_;  // of each watched process; -1: none, -2: cannot be watched
};

}  // namespace dtensor::detail
