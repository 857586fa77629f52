// The decision cache itself, without tensors: the preset tsan runs this file.
#include <dtensor/decision_cache.h>
#include <placements/layout.h>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

using namespace dtensor;

namespace {

// A decision that can be told apart by its cost.
std::shared_ptr<const Decision> decision(std::uint64_t number) {
  auto made = std::make_shared<Decision>();
  made->cost = static_cast<double>(number);
  return made;
}

DecisionKey key(std::uint64_t number) { return {number, number * 7, 3}; }

struct Limit {
  explicit Limit(std::size_t limit) { DecisionCache::instance().set_limit(limit); }
  ~Limit() {
    DecisionCache::instance().set_limit(32768);
    DecisionCache::instance().clear();
  }
};

}  // namespace

TEST_CASE("decision cache: what was inserted is found, until the cache is cleared") {
  auto& cache = DecisionCache::instance();
  cache.clear();
  CHECK(cache.find(key(1)) == nullptr);
  cache.insert(key(1), decision(1));
  for (int i = 0; i < 2; ++i) CHECK(cache.find(key(1))->cost == 1);  // the second time from this thread's front
  cache.clear();
  CHECK(cache.find(key(1)) == nullptr);
}

TEST_CASE("decision cache: beyond its limit it forgets, and says how much") {
  const Limit limit(10);
  auto& cache = DecisionCache::instance();
  cache.clear();
  const auto before = cache.statistics().evictions;
  for (std::uint64_t i = 0; i < 100; ++i) {
    cache.insert(key(i), decision(i));
    REQUIRE(cache.find(key(i))->cost == static_cast<double>(i));
    REQUIRE(cache.statistics().size <= 10);
  }
  CHECK(cache.statistics().evictions - before >= 90);
}

TEST_CASE("decision cache: what is used stays, what is not goes first") {
  const Limit limit(8);
  auto& cache = DecisionCache::instance();
  cache.clear();
  cache.insert(key(1000), decision(1000));
  const auto before = cache.statistics();
  for (std::uint64_t i = 0; i < 100; ++i) {
    REQUIRE(cache.find(key(1000)) != nullptr);
    cache.insert(key(i), decision(i));
  }
  const auto after = cache.statistics();
  CHECK(after.misses == before.misses);
  CHECK(after.hits == before.hits + 100);
  CHECK(after.size == 8);
  CHECK(after.evictions - before.evictions == 93);
  // Not merely from this thread's front: another thread finds it in the table, which kept it for its uses.
  bool found = false;
  std::thread([&] { found = cache.find(key(1000)) != nullptr; }).join();
  CHECK(found);
  CHECK(cache.statistics().hits == after.hits + 1);  // of a thread that has ended
}

TEST_CASE("decision cache: a lower limit takes effect at once, and 0 keeps nothing") {
  const Limit limit(50);
  auto& cache = DecisionCache::instance();
  cache.clear();
  for (std::uint64_t i = 0; i < 50; ++i) {
    cache.insert(key(i), decision(i));
    cache.find(key(i));
  }
  cache.set_limit(20);
  CHECK(cache.statistics().limit == 20);
  CHECK(cache.statistics().size == 20);
  int found = 0;
  for (std::uint64_t i = 0; i < 50; ++i)
    if (const auto entry = cache.find(key(i))) {
      CHECK(entry->cost == static_cast<double>(i));
      ++found;
    }
  CHECK(found == 20);
  cache.set_limit(0);
  cache.insert(key(1), decision(1));
  CHECK(cache.statistics().size == 0);
  CHECK(cache.find(key(1)) == nullptr);
}

TEST_CASE("decision cache and layouts: many threads look up, insert and clear at once") {
  const Limit limit(64);
  auto& cache = DecisionCache::instance();
  const auto* mesh = MeshLayout::of(c10::DeviceType::CPU, {2, 2}, {"a", "b"});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < 4000; ++i) {
        const std::uint64_t number = (i * 31 + static_cast<std::uint64_t>(thread)) % 97;
        const auto found = cache.find(key(number));
        if (found && found->cost != static_cast<double>(number)) ++wrong;
        if (!found) cache.insert(key(number), decision(number));
        if (thread == 0 && i % 500 == 0) cache.clear();
        const auto dim = static_cast<std::int64_t>(i % 50);
        if (Layout::of(mesh, {Shard(dim), Replicate()}) != Layout::of(mesh, {Shard(dim), Replicate()})) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
