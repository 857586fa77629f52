#include "dtensor/decision_cache.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dtensor {
namespace {

std::size_t hash_of(const DecisionKey& key) {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(key.data()), key.size() * sizeof(std::uint64_t)});
}

// A key and its hash, where they lie.
struct KeyView {
  const DecisionKey* key;
  std::size_t hash;
  friend bool operator==(const KeyView& a, const KeyView& b) { return a.hash == b.hash && *a.key == *b.key; }
};
struct HashOfView {
  std::size_t operator()(const KeyView& view) const { return view.hash; }
};

}  // namespace

struct DecisionCache::Entry {
  Entry(DecisionKey key_, std::size_t hash_, std::shared_ptr<const Decision> decision_)
      : key(std::move(key_)), hash(hash_), decision(std::move(decision_)) {}
  KeyView view() const { return {&key, hash}; }
  // Reads first: a line that all threads read stays in all their caches.
  void mark_used() {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
  }

  const DecisionKey key;
  const std::size_t hash;
  const std::shared_ptr<const Decision> decision;
  std::atomic<bool> used{false};
};

struct DecisionCache::State {
  mutable std::shared_mutex mutex;
  std::unordered_map<KeyView, std::shared_ptr<Entry>, HashOfView> table;  // keys lie in the entries
  std::vector<std::shared_ptr<Entry>> ring;                              // the same entries, in the hand's order
  std::size_t hand = 0;
  std::size_t limit = 32768;
  std::int64_t evictions = 0;
  std::atomic<std::uint64_t> generation{1};

  // Fronts of living threads, and what those of ended threads counted.
  mutable std::mutex fronts_mutex;
  std::vector<const Front*> fronts;
  std::int64_t past_hits = 0, past_misses = 0;

  // Takes one entry out of a full table; returns its place in the ring. The mutex is held, the ring is not empty.
  std::size_t evict() {
    while (ring[hand]->used.exchange(false, std::memory_order_relaxed)) hand = (hand + 1) % ring.size();
    const std::size_t place = hand;
    hand = (hand + 1) % ring.size();
    table.erase(ring[place]->view());
    ++evictions;
    return place;
  }
};

// Entries of the generation in which they were copied: two places for each remainder of the hash, the later used first.
// One thread writes its counts, others read them.
struct DecisionCache::Front {
  explicit Front(State& state_) : state(state_) {
    const std::lock_guard lock(state.fronts_mutex);
    state.fronts.push_back(this);
  }
  ~Front() {
    const std::lock_guard lock(state.fronts_mutex);
    state.fronts.erase(std::find(state.fronts.begin(), state.fronts.end(), this));
    state.past_hits += hits;
    state.past_misses += misses;
  }
  static void count(std::atomic<std::int64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  State& state;
  std::array<std::array<std::shared_ptr<Entry>, 2>, 256> sets;
  std::uint64_t generation = 0;
  std::atomic<std::int64_t> hits{0}, misses{0};
};

DecisionCache::DecisionCache() : state_(std::make_unique<State>()) {}

DecisionCache& DecisionCache::instance() {
  static auto* cache = new DecisionCache;  // immortal: fronts of other threads may end after static objects
  return *cache;
}

std::shared_ptr<const Decision> DecisionCache::find(const DecisionKey& key) {
  static thread_local Front front(*state_);
  const auto generation = state_->generation.load(std::memory_order_acquire);
  if (front.generation != generation) [[unlikely]] {
    front.sets = {};
    front.generation = generation;
  }
  const KeyView view{&key, hash_of(key)};
  auto& set = front.sets[view.hash % front.sets.size()];
  for (auto& entry : set) {
    if (!entry || !(entry->view() == view)) continue;
    entry->mark_used();
    Front::count(front.hits);
    if (&entry != &set[0]) std::swap(set[0], set[1]);
    return set[0]->decision;
  }
  std::shared_ptr<Entry> entry;
  {
    const std::shared_lock lock(state_->mutex);
    if (auto found = state_->table.find(view); found != state_->table.end()) entry = found->second;
  }
  Front::count(entry ? front.hits : front.misses);
  if (!entry) return nullptr;
  entry->mark_used();
  set[1] = std::move(set[0]);
  set[0] = std::move(entry);
  return set[0]->decision;
}

void DecisionCache::insert(const DecisionKey& key, std::shared_ptr<const Decision> decision) {
  auto entry = std::make_shared<Entry>(key, hash_of(key), std::move(decision));
  const std::unique_lock lock(state_->mutex);
  auto& table = state_->table;
  auto& ring = state_->ring;
  if (state_->limit == 0 || table.count(entry->view()) > 0) return;
  if (ring.size() < state_->limit)
    ring.push_back(entry);
  else
    ring[state_->evict()] = entry;
  table.emplace(entry->view(), entry);
}

DecisionCacheStatistics DecisionCache::statistics() const {
  DecisionCacheStatistics result;
  {
    const std::shared_lock lock(state_->mutex);
    result.size = static_cast<std::int64_t>(state_->table.size());
    result.limit = static_cast<std::int64_t>(state_->limit);
    result.evictions = state_->evictions;
  }
  const std::lock_guard lock(state_->fronts_mutex);
  result.hits = state_->past_hits;
  result.misses = state_->past_misses;
  for (const auto* front : state_->fronts) {
    result.hits += front->hits.load(std::memory_order_relaxed);
    result.misses += front->misses.load(std::memory_order_relaxed);
  }
  return result;
}

void DecisionCache::set_limit(std::size_t limit) {
  const std::unique_lock lock(state_->mutex);
  state_->limit = limit;
  if (state_->ring.size() <= limit) return;
  while (state_->ring.size() > limit) {
    const auto place = state_->evict();
    state_->ring[place] = std::move(state_->ring.back());
    state_->ring.pop_back();
    if (state_->hand >= state_->ring.size()) state_->hand = 0;
  }
  state_->generation.fetch_add(1, std::memory_order_release);  // the fronts let go of what was evicted
}

void DecisionCache::clear() {
  const std::unique_lock lock(state_->mutex);
  state_->table.clear();
  state_->ring.clear();
  state_->hand = 0;
  state_->generation.fetch_add(1, std::memory_order_release);
}

}  // namespace dtensor
