#include "comm/counters.h"

#include "comm/world.h"

namespace dtensor {

thread_local const char* CollectiveReason::current_ = "";

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::broadcast:
      return "broadcast";
    case Collective::scatter:
      return "scatter";
    case Collective::send:
      return "send";
    case Collective::recv:
      return "recv";
    case Collective::barrier:
      return "barrier";
  }
  return "unknown collective";
}

CollectiveCounter::CollectiveCounter() : CollectiveCounter(World::current()) {}

CollectiveCounter::CollectiveCounter(World& world) : world_(&world), start_(world.tallies()) {}

void CollectiveCounter::reset() { start_ = world_->tallies(); }

CollectiveTallies CollectiveCounter::tallies() const {
  CollectiveTallies result;
  for (const auto& [key, now] : world_->tallies()) {
    const auto before = start_.find(key);
    const CollectiveTally since = before == start_.end() ? CollectiveTally{} : before->second;
    if (now != since) result[key] = {now.calls - since.calls, now.bytes - since.bytes};
  }
  return result;
}

namespace {

template <typename Chosen>
CollectiveTally sum_where(const CollectiveTallies& tallies, const Chosen& chosen) {
  CollectiveTally sum;
  for (const auto& [key, tally] : tallies) {
    if (!chosen(key)) continue;
    sum.calls += tally.calls;
    sum.bytes += tally.bytes;
  }
  return sum;
}

}  // namespace

std::int64_t CollectiveCounter::count(Collective collective) const {
  return sum_where(tallies(), [&](const CollectiveKey& key) { return key.collective == collective; }).calls;
}

std::int64_t CollectiveCounter::count(Collective collective, const std::string& group) const {
  return sum_where(
             tallies(),
             [&](const CollectiveKey& key) { return key.collective == collective && key.group == group; })
      .calls;
}

std::int64_t CollectiveCounter::count(Collective collective, const std::string& group,
                                      const std::string& reason) const {
  return sum_where(tallies(),
                   [&](const CollectiveKey& key) {
                     return key.collective == collective && key.group == group && key.reason == reason;
                   })
      .calls;
}

std::int64_t CollectiveCounter::total() const {
  return sum_where(tallies(), [](const CollectiveKey&) { return true; }).calls;
}

std::int64_t CollectiveCounter::bytes() const {
  return sum_where(tallies(), [](const CollectiveKey&) { return true; }).bytes;
}

std::int64_t CollectiveCounter::bytes(const std::string& group) const {
  return sum_where(tallies(), [&](const CollectiveKey& key) { return key.group == group; }).bytes;
}

std::string CollectiveCounter::to_string() const {
  std::map<std::pair<std::string, Collective>, CollectiveTally> merged;  // over reasons
  for (const auto& [key, tally] : tallies()) {
    auto& sum = merged[{key.group, key.collective}];
    sum.calls += tally.calls;
    sum.bytes += tally.bytes;
  }
  std::string text;
  for (const auto& [key, tally] : merged) {
    if (!text.empty()) text += ", ";
    text += key.first + " " + dtensor::to_string(key.second) + " " + std::to_string(tally.calls) + " (" +
            std::to_string(tally.bytes) + " B)";
  }
  return text;
}

}  // namespace dtensor
