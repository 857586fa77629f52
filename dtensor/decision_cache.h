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
  std::int64_t size = 0, hits = 0, misses = 0, evictions = 0;
};

class DecisionCache {
 public:
  static DecisionCache& instance();
  // nullptr when absent.
  std::shared_ptr<const Decision> find(const DecisionKey& key);
  void insert(const DecisionKey& key, std::shared_ptr<const Decision> decision);
  DecisionCacheStatistics statistics() const;
  // Beyond `limit` entries the cache is emptied. Default 32768.
  void set_limit(std::size_t limit);
  void clear();

 private:
  DecisionCache();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtensor
