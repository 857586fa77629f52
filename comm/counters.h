// What a rank has communicated: counts and bytes per mesh dimension, collective and reason.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace dtensor {

class World;

// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "send", "recv",
// "barrier"
enum class Collective : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  scatter,
  send,
  recv,
  barrier
};
const char* to_string(Collective collective);

// Why a collective ran, as set by the innermost CollectiveReason of the calling thread: a static string such
// as "implicit move", "wish", "gradient", "user", "check". "" when nobody said.
class CollectiveReason {
 public:
  explicit CollectiveReason(const char* reason) : former_(current_) { current_ = reason; }
  ~CollectiveReason() { current_ = former_; }
  CollectiveReason(const CollectiveReason&) = delete;
  CollectiveReason& operator=(const CollectiveReason&) = delete;
  static const char* current() { return current_; }

 private:
  static thread_local const char* current_;
  const char* former_;
};

struct CollectiveKey {
  std::string group;  // the mesh dimension's name ("tp"), or names joined by "," for several
  Collective collective;
  std::string reason;
  friend auto operator<=>(const CollectiveKey&, const CollectiveKey&) = default;
};

struct CollectiveTally {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // received by this rank, whatever the algorithm (DESIGN section 3)
  friend bool operator==(const CollectiveTally&, const CollectiveTally&) = default;
};

using CollectiveTallies = std::map<CollectiveKey, CollectiveTally>;

// Counts the collectives that this rank issues from its construction on. Groups of one rank count nothing.
class CollectiveCounter {
 public:
  CollectiveCounter();  // of the current World
  explicit CollectiveCounter(World& world);
  void reset();

  CollectiveTallies tallies() const;
  // Calls of one collective, over all groups or one.
  std::int64_t count(Collective collective) const;
  std::int64_t count(Collective collective, const std::string& group) const;
  std::int64_t count(Collective collective, const std::string& group, const std::string& reason) const;
  std::int64_t total() const;  // calls of everything
  std::int64_t bytes() const;
  std::int64_t bytes(const std::string& group) const;
  std::string to_string() const;  // "tp all_gather 2 (4096 B), tp reduce_scatter 2 (4096 B)"

 private:
  World* world_;
  CollectiveTallies start_;
};

}  // namespace dtensor
