#include "comm/world.h"

#include "comm/world_state.h"
#include "placements/error.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

namespace dtensor {

namespace {

thread_local World* current_of_thread = nullptr;
std::atomic<World*> current_of_process = nullptr;

}  // namespace

namespace detail {

void set_process_world(World* world) { current_of_process.store(world); }

}  // namespace detail

struct World::Book {
  using GroupKey = std::tuple<std::vector<std::int64_t>, std::string, c10::DeviceType>;

  mutable std::mutex mutex;  // background users share tallies and groups with the main thread
  CollectiveTallies tallies;
  std::map<GroupKey, c10::intrusive_ptr<Group>> groups;
  std::map<const void*, std::shared_ptr<void>> slots;  // may point to groups: destroyed before them
};

World::World(int rank, int size, int local_rank, std::string source,
             std::shared_ptr<detail::WorldState> state)
    : rank_(rank),
      size_(size),
      local_rank_(local_rank),
      source_(std::move(source)),
      state_(std::move(state)),
      book_(std::make_unique<Book>()) {}

World::~World() {
  state_->leave();
  book_->slots.clear();
  book_.reset();
}

Group& World::group(const std::vector<std::int64_t>& ranks, const std::string& label,
                    c10::DeviceType device_type) {
  const std::lock_guard lock(book_->mutex);
  auto& entry = book_->groups[{ranks, label, device_type}];
  if (entry) return *entry;
  const auto refuse = [&](const std::string& reason) {
    book_->groups.erase({ranks, label, device_type});
    throw MeshError("group '" + label + "' of " + detail::describe_ranks(ranks) + ", asked for by rank " +
                    std::to_string(rank_) + " of a world of " + std::to_string(size_) + ": " + reason);
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_)
      refuse("rank " + std::to_string(ranks[i]) + " is not in the world");
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse("rank " + std::to_string(ranks[i]) + " is named twice");
    }
  }
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  if (self == ranks.end()) refuse("this rank is not a member; only members make a group");
  const detail::GroupIdentity identity{ranks, static_cast<int>(self - ranks.begin()), label, device_type};
  try {
    auto backend = ranks.size() == 1 ? detail::make_local_backend(identity) : state_->make_backend(identity);
    entry = c10::make_intrusive<Group>(*this, identity, std::move(backend));
  } catch (...) {
    book_->groups.erase({ranks, label, device_type});
    throw;
  }
  return *entry;
}

Group& World::group(c10::DeviceType device_type) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(ranks, "world", device_type);
}

CollectiveTallies World::tallies() const {
  const std::lock_guard lock(book_->mutex);
  return book_->tallies;
}

void World::record(const std::string& group, Collective collective, std::int64_t bytes) {
  const std::lock_guard lock(book_->mutex);
  auto& tally = book_->tallies[{group, collective, CollectiveReason::current()}];
  ++tally.calls;
  tally.bytes += bytes;
}

void World::abort(const std::string& text) noexcept { state_->post_abort(text); }

std::optional<std::string> World::abort_note() const { return state_->abort_note(); }

std::chrono::milliseconds World::timeout() const { return state_->timeout(); }

void World::release_thread() {
  const std::lock_guard lock(book_->mutex);
  for (auto& [key, group] : book_->groups) group->release_thread();
}

std::shared_ptr<void>& World::slot(const void* tag) {
  const std::lock_guard lock(book_->mutex);
  return book_->slots[tag];
}

World* World::current_or_null() { return current_of_thread ? current_of_thread : current_of_process.load(); }

World& World::current() {
  World* world = current_or_null();
  if (!world) throw MeshError("there is no world yet: call dtensor::init() first, or run inside run_ranks()");
  return *world;
}

World* World::exchange_current(World* world) { return std::exchange(current_of_thread, world); }

}  // namespace dtensor
