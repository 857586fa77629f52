#include "comm/watch.h"

#include <sstream>

namespace dtensor::detail {

namespace {

std::string beat_key(std::int64_t rank) { return "beat/" + std::to_string(rank); }
std::string left_key(std::int64_t rank) { return "left/" + std::to_string(rank); }

Beat parse(const std::vector<std::uint8_t>& bytes) {
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  Beat beat;
  text >> beat.tick;
  std::string key;
  std::int64_t issued = 0;
  while (text >> key >> issued) beat.issued[key] = issued;
  return beat;
}

}  // namespace

std::string Watch::beat_text() const {
  std::string text = std::to_string(tick_);
  const std::lock_guard lock(mutex_);
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) text += " " + group->key + " " + std::to_string(group->issued.load());
  }
  return text;
}

void Watch::beat(c10d::Store& store) {
  if (!beating_) return;
  ++tick_;
  store.set(beat_key(rank_), beat_text());
  read_news(store);
}

void Watch::read_news(c10d::Store& store) {
  const auto news = store.add("news", 0);
  if (news == news_read_) return;
  news_read_ = news;
  if (store.check({"abort"})) {
    const auto note = store.get_to_str("abort");
    const std::lock_guard lock(mutex_);
    abort_note_ = note;
  }
  for (std::int64_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || left(rank) || !store.check({left_key(rank)})) continue;
    const Beat last = parse(store.get(left_key(rank)));
    const std::lock_guard lock(mutex_);
    left_[rank] = last;
  }
  alarm_.store(true, std::memory_order_release);
}

void Watch::post_abort(c10d::Store& store, const std::string& text) {
  const auto note = store.compareSet("abort", std::string(), text);  // the first tells the cause
  store.add("news", 1);
  const std::lock_guard lock(mutex_);
  abort_note_ = note;
  alarm_.store(true, std::memory_order_release);
}

std::int64_t Watch::post_left(c10d::Store& store) {
  store.set(left_key(rank_), beat_text());
  store.add("news", 1);
  return store.add("left_count", 1);
}

std::vector<Beat> Watch::read_beats(c10d::Store& store, const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> keys;
  for (const auto rank : ranks) keys.push_back(beat_key(rank));
  std::vector<Beat> beats;
  for (const auto& bytes : store.multiGet(keys)) beats.push_back(parse(bytes));
  return beats;
}

void Watch::set_lost(const std::string& text) {
  const std::lock_guard lock(mutex_);
  lost_ = text.substr(0, text.find('\n'));
  alarm_.store(true, std::memory_order_release);
}

std::shared_ptr<GroupProgress> Watch::add_progress(const std::string& key) {
  auto progress = std::make_shared<GroupProgress>();
  progress->key = key;
  const std::lock_guard lock(mutex_);
  groups_.push_back(progress);
  return progress;
}

std::optional<std::string> Watch::abort_note() const {
  const std::lock_guard lock(mutex_);
  return abort_note_;
}

std::optional<Beat> Watch::left(std::int64_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = left_.find(rank);
  return found == left_.end() ? std::nullopt : std::optional<Beat>(found->second);
}

std::optional<std::string> Watch::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

}  // namespace dtensor::detail
