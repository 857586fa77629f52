// The decision cache: one for the process, shared by all rank and autograd threads, with a small front per thread.
#pragma once

#include "ops/decision.h"

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

namespace dtensor {

// What a decision depends on, packed into words: operator, layouts, shapes as far as they matter, keyed arguments.
using DecisionKey = c10::SmallVector<std::uint64_t, 24>;

struct DecisionCacheStatistics {
  std::int64_t size = 0, limit = 0, hits = 0, misses = 0, evictions = 0;
};

// Note [Bounded cache]
// The table evicts by the clock algorithm: a hand goes round and takes the first entry that was not used since it last
// came by. A front is a few hundred places of fixed number; an entry that the table evicted may stay in one, and is still
// right, because a decision follows from its key alone. Looking up marks the entry as used in both.
class DecisionCache {
 public:
  static DecisionCache& instance();
  // nullptr when absent.
  std::shared_ptr<const Decision> find(const DecisionKey& key);
  // Keeps what is there already: two threads that decide one key decide the same.
  void insert(const DecisionKey& key, std::shared_ptr<const Decision> decision);
  DecisionCacheStatistics statistics() const;
  // The table never holds more than `limit` entries; a lower one takes effect at once. Default 32768; 0: nothing is kept.
  void set_limit(std::size_t limit);
  void clear();

  struct Entry;
  struct Front;

 private:
  DecisionCache();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtensor
