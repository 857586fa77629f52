#include "dtensor/decision_cache.h"

#include <atomic>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

namespace dtensor {
namespace {

std::string_view bytes(const DecisionKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size() * sizeof(std::uint64_t)};
}
struct Hash {
  std::size_t operator()(const DecisionKey& key) const { return std::hash<std::string_view>()(bytes(key)); }
};
using Table = std::unordered_map<DecisionKey, std::shared_ptr<const Decision>, Hash>;

// The front of one thread: entries of the generation in which they were copied.
struct Front {
  Table table;
  std::uint64_t generation = 0;
};
thread_local Front front;
constexpr std::size_t front_limit = 4096;

}  // namespace

struct DecisionCache::State {
  std::shared_mutex mutex;
  Table table;
  std::atomic<std::uint64_t> generation{1};
  std::atomic<std::int64_t> hits{0}, misses{0}, evictions{0};
  std::atomic<std::size_t> limit{32768};
};

DecisionCache::DecisionCache() : state_(std::make_unique<State>()) {}

DecisionCache& DecisionCache::instance() {
  static DecisionCache cache;
  return cache;
}

std::shared_ptr<const Decision> DecisionCache::find(const DecisionKey& key) {
  const auto generation = state_->generation.load(std::memory_order_acquire);
  if (front.generation != generation) {
    front.table.clear();
    front.generation = generation;
  }
  if (auto found = front.table.find(key); found != front.table.end()) {
    state_->hits.fetch_add(1, std::memory_order_relaxed);
    return found->second;
  }
  std::shared_ptr<const Decision> decision;
  {
    const std::shared_lock lock(state_->mutex);
    if (auto found = state_->table.find(key); found != state_->table.end()) decision = found->second;
  }
  if (!decision) {
    state_->misses.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  state_->hits.fetch_add(1, std::memory_order_relaxed);
  if (front.table.size() >= front_limit) front.table.clear();
  front.table.emplace(key, decision);
  return decision;
}

void DecisionCache::insert(const DecisionKey& key, std::shared_ptr<const Decision> decision) {
  const std::unique_lock lock(state_->mutex);
  if (state_->table.size() >= state_->limit) {
    state_->evictions.fetch_add(static_cast<std::int64_t>(state_->table.size()), std::memory_order_relaxed);
    state_->table.clear();
    state_->generation.fetch_add(1, std::memory_order_release);
  }
  state_->table.insert_or_assign(key, std::move(decision));
}

DecisionCacheStatistics DecisionCache::statistics() const {
  const std::shared_lock lock(state_->mutex);
  return {static_cast<std::int64_t>(state_->table.size()), state_->hits.load(), state_->misses.load(),
          state_->evictions.load()};
}

void DecisionCache::set_limit(std::size_t limit) { state_->limit = limit; }

void DecisionCache::clear() {
  const std::unique_lock lock(state_->mutex);
  state_->table.clear();
  state_->generation.fetch_add(1, std::memory_order_release);
}

}  // namespace dtensor
