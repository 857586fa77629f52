#include "comm/process_world.h"

#include "comm/listener.h"
#include "comm/peer_processes.h"
#include "comm/pump.h"
#include "comm/store_thread.h"
#include "comm/watch.h"
#include "placements/error.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>

namespace dtensor::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds store_patience{3000};  // for one answer of a store that works
constexpr milliseconds serve_patience{5000};  // of rank 0 for the others to end, too
constexpr milliseconds leave_patience{2000};  // of the other ranks
constexpr milliseconds abort_patience{2000};  // for the others to read an abort note
constexpr milliseconds pump_patience{2000};   // for work that was issued and never waited for

milliseconds beat_interval(int world_size) { return milliseconds(500 + world_size); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Names a group in the store: FNV-1a of what makes its identity.
std::string group_key(const GroupIdentity& group) {
  std::string identity = group.label + "|" + c10::DeviceTypeName(group.device_type) + "|";
  for (const auto rank : group.ranks) identity += std::to_string(rank) + ",";
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char letter : identity) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << hash;
  return text.str();
}

bool is_point_to_point(const Call& call) { return call.peer >= 0; }

}  // namespace

std::shared_ptr<ProcessWorld> ProcessWorld::start(const ProcessWorldOptions& options) {
  const std::shared_ptr<ProcessWorld> world(new ProcessWorld(options));
  world->connect();
  try {
    world->meet_world();
  } catch (const Error&) {
    world->leave();  // the peers read why before the store goes
    throw;
  } catch (const std::exception& error) {
    throw CommError("start-up of rank " + std::to_string(options.identity.rank) +
                    ": the store of rank 0 no longer answers: " + first_line(error.what()));
  }
  return world;
}

ProcessWorld::ProcessWorld(const ProcessWorldOptions& options)
    : options_(options), pump_(std::make_unique<Pump>()) {}

ProcessWorld::~ProcessWorld() = default;

void ProcessWorld::connect() {
  const auto& identity = options_.identity;
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<std::uint16_t>(identity.master_port);
  tcp.waitWorkers = false;
  tcp.timeout = options_.startup_timeout;
  const auto open = [&](bool is_server) -> c10::intrusive_ptr<c10d::Store> {
    tcp.isServer = is_server;
    return c10::make_intrusive<c10d::PrefixStore>(
        "dtensor/" + identity.run, c10::make_intrusive<c10d::TCPStore>(identity.master_address, tcp));
  };
  const bool serves = identity.rank == 0 && !identity.store_is_served;
  const std::string place = identity.master_address + ":" + std::to_string(identity.master_port);
  try {
    if (!serves) {
      const auto deadline = Clock::now() + options_.startup_timeout;
      await_listener(identity.master_address, tcp.port, deadline);
      tcp.timeout = std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(100));
    }
    store_ = open(serves);
    tcp.timeout = options_.startup_timeout;
    const auto watch_store = open(false);
    watch_ = std::make_shared<Watch>(identity.rank, identity.world_size);
    watch_->beat(*watch_store);
    store_thread_ = std::make_unique<StoreThread>(
        watch_store, beat_interval(identity.world_size),
        [watch = watch_](c10d::Store& store) { watch->beat(store); },
        [watch = watch_](const std::string& text) { watch->set_lost(text); });
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(identity.rank) + " of " + std::to_string(identity.world_size) +
                    (serves ? " cannot serve the store at " : " cannot reach the store of rank 0 at ") +
                    place + " within the start-up time-out of " +
                    std::to_string(options_.startup_timeout.count()) + " ms: " + first_line(error.what()));
  }
}

void ProcessWorld::meet_world() {
  const auto& identity = options_.identity;
  const std::string self = std::to_string(identity.rank);
  const std::string size = std::to_string(identity.world_size);
  const auto refuse = [&](const std::string& text) {
    post_abort(text);
    throw MeshError("start-up: " + text);
  };
  if (store_->add("claim/" + self, 1) > 1) refuse("two processes say that they are rank " + self);
  if (const auto agreed = store_->compareSet("world_size", std::string(), size); agreed != size) {
    refuse("rank " + self + " was told of " + size + " ranks, another one of " + agreed);
  }
  if (const auto agreed = store_->compareSet("backend", std::string(), options_.backend); agreed != options_.backend) {
    refuse("rank " + self + " was told to use backend '" + options_.backend + "', another one '" + agreed + "'");
  }
  store_->set("hello/" + self, ProcessPlace::own().to_text());
  std::vector<std::string> missing;
  for (int rank = 0; rank < identity.world_size; ++rank) missing.push_back("hello/" + std::to_string(rank));
  const auto deadline = Clock::now() + options_.startup_timeout;
  milliseconds pause{2};
  const auto check_abort = [&] {
    const auto note = abort_note();
    if (note) throw CommError("start-up of rank " + self + ": the run was aborted by " + *note);
  };
  check_abort();
  while (!store_->check(missing)) {
    check_abort();
    if (Clock::now() > deadline) {
      std::vector<std::int64_t> absent;
      for (int rank = 0; rank < identity.world_size; ++rank) {
        if (!store_->check({"hello/" + std::to_string(rank)})) absent.push_back(rank);
      }
      const std::string text = "start-up timed out after " +
                               std::to_string(options_.startup_timeout.count()) +
                               " ms; missing: " + describe_ranks(absent) + " of " + size;
      post_abort(text);
      throw CommError("rank " + self + ": " + text);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(100));
  }
  std::vector<ProcessPlace> places;
  for (const auto& text : store_->multiGet(missing)) {
    places.push_back(ProcessPlace::from_text(std::string(text.begin(), text.end())));
  }
  peers_ = std::make_unique<PeerProcesses>(std::move(places));
}

std::unique_ptr<Backend> ProcessWorld::make_backend(const GroupIdentity& group) {
  check_device(group.device_type);
  if (group.device_type == c10::DeviceType::CUDA) return make_nccl_backend(shared_from_this(), group);
  const bool together = peers_->together(group.ranks);
  if (options_.backend == "shared_memory" && !together) {
    throw MeshError("group '" + group.label + "' of " + describe_ranks(group.ranks) +
                    " is not on one host (or not of one user and container), but the world was initialised with "
                    "backend 'shared_memory'; use 'auto' or 'gloo'");
  }
  if (options_.backend != "gloo" && together) return make_shared_memory_backend(shared_from_this(), group);
  if (!has_gloo()) {
    throw MeshError("group '" + group.label + "' of " + describe_ranks(group.ranks) +
                    " is not on one host, and this build has no Gloo backend (see docs/communication.md)");
  }
  return make_gloo_backend(shared_from_this(), group);
}

void ProcessWorld::check_device(c10::DeviceType device_type) const {
  const auto refuse = [&](const std::string& why) {
    throw MeshError("processes cannot hold a mesh on " + c10::DeviceTypeName(device_type, true) + ": " + why);
  };
  if (device_type == c10::DeviceType::CPU) {
    if (options_.backend == "nccl")
      refuse("the world was initialised with backend 'nccl'; use 'auto', 'shared_memory' or 'gloo'");
    if (!has_gloo() && options_.backend == "gloo")
      refuse("this build has no Gloo backend (see docs/communication.md)");
  } else if (device_type == c10::DeviceType::CUDA) {
    if (options_.backend == "gloo" || options_.backend == "shared_memory")
      refuse("the world was initialised with backend '" + options_.backend + "'; use 'auto' or 'nccl'");
    if (!has_nccl()) refuse("this build has no NCCL backend (see docs/communication.md)");
  } else {
    refuse("no backend moves such tensors");
  }
}

void ProcessWorld::post_abort(const std::string& text) noexcept {
  try {
    const std::string note = "rank " + std::to_string(options_.identity.rank) + ": " + text;
    store_thread_->run<bool>(
        [watch = watch_, note](c10d::Store& store) {
          watch->post_abort(store, note);
          return true;
        },
        store_patience);
  } catch (...) {  // no memory, or no store: the peers still see the connections close
  }
}

std::optional<std::string> ProcessWorld::abort_note() const {
  return watch_->has_alarm() ? watch_->abort_note() : std::nullopt;
}

void ProcessWorld::leave() noexcept {
  pump_->finish(abort_note() ? milliseconds(0) : pump_patience);
  try {
    const auto world_size = options_.identity.world_size;
    const bool serves = options_.identity.rank == 0 && !options_.identity.store_is_served;
    const auto ask = [&](const char* key) {
      return store_thread_->run<std::int64_t>([key](c10d::Store& store) { return store.add(key, 0); },
                                              store_patience);
    };
    const auto wait_for = [&](const char* key, std::int64_t count, milliseconds patience) {
      const auto deadline = Clock::now() + patience;
      for (auto seen = ask(key); seen && *seen < count && Clock::now() < deadline; seen = ask(key)) {
        std::this_thread::sleep_for(milliseconds(5));
      }
    };
    store_thread_->run<std::int64_t>([watch = watch_](c10d::Store& store) { return watch->post_left(store); },
                                     store_patience);
    // Who leaves first waits a moment: closing connections early may cut off what peers still read from them. Rank 0
    // serves the store and waits for all to have read the news and to have closed their connections to it.
    const bool aborted = abort_note().has_value();
    if (serves) wait_for("left_count", world_size, aborted ? abort_patience : serve_patience);
    if (!serves && !aborted) wait_for("left_count", world_size, leave_patience);
    if (serves) {
      watch_->stop_beating();
      wait_for("gone_count", ask("left_count").value_or(1) - 1, abort_patience);
    } else {
      store_thread_->run<bool>(
          [watch = watch_](c10d::Store& store) {
            watch->stop_beating();
            store.add("gone_count", 1);
            return true;
          },
          store_patience);
    }
  } catch (...) {  // an orderly end is a courtesy to the peers
  }
}

std::shared_ptr<GroupProgress> ProcessWorld::add_progress(const GroupIdentity& group) {
  return watch_->add_progress(group_key(group));
}

c10::intrusive_ptr<c10d::Store> ProcessWorld::group_store(const GroupProgress& progress) const {
  return c10::make_intrusive<c10d::PrefixStore>("group/" + progress.key, store_);
}

std::optional<std::string> ProcessWorld::reason_to_stop(const GroupIdentity& group,
                                                        const GroupProgress& progress,
                                                        const Call& call) const {
  if (!watch_->has_alarm()) return std::nullopt;
  if (const auto note = watch_->abort_note()) return "the run was aborted by " + *note;
  for (const auto rank : group.ranks) {
    const auto last = watch_->left(rank);
    if (!last || is_point_to_point(call)) continue;  // what it sent may still be on its way
    const auto found = last->issued.find(progress.key);
    if (found == last->issued.end() || found->second <= call.sequence) {
      return "rank " + std::to_string(rank) +
             " has already ended, in order, without calling it; missing: rank " + std::to_string(rank);
    }
  }
  const auto lost = watch_->lost();
  if (lost && !watch_->left(0))
    return "rank 0 is lost: its store no longer answers (" + *lost + "); missing: rank 0";
  return std::nullopt;
}

std::vector<std::string> ProcessWorld::meet(const GroupIdentity& group, const GroupProgress& progress,
                                            const Call& call, milliseconds patience, const std::string& word) {
  const std::string prefix = "meet/" + progress.key + "/";
  const std::string self = prefix + std::to_string(options_.identity.rank);
  std::vector<std::string> members;
  for (const auto rank : group.ranks) members.push_back(prefix + std::to_string(rank));
  store_thread_->run<bool>(
      [self, word](c10d::Store& store) {
        store.set(self, word);
        return true;
      },
      store_patience);
  const auto deadline = Clock::now() + patience;
  milliseconds pause{1};
  while (true) {
    using Words = std::vector<std::string>;
    const auto all = store_thread_->run<Words>(  // empty: somebody is not there
        [members](c10d::Store& store) {
          Words words;
          if (!store.check(members)) return words;
          for (const auto& text : store.multiGet(members)) words.emplace_back(text.begin(), text.end());
          return words;
        },
        store_patience);
    if (all && !all->empty()) return *all;
    if (reason_to_stop(group, progress, call)) fail(group, progress, call, "the group could not be made");
    if (!all) fail(group, progress, call, "the store of rank 0 does not answer");
    if (Clock::now() > deadline) {
      fail(group, progress, call,
           "timed out after " + std::to_string(patience.count()) + " ms (first use of the group)");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
}

std::string ProcessWorld::find_missing(const GroupIdentity& group, const GroupProgress& progress,
                                       const Call& call) {
  std::vector<std::int64_t> peers;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    const bool asked =
        is_point_to_point(call) ? static_cast<int>(i) == call.peer : static_cast<int>(i) != group.rank;
    if (asked) peers.push_back(group.ranks[i]);
  }
  // All ranks' beats: who is waited for may itself wait for a rank of another group.
  std::vector<std::int64_t> everyone(static_cast<std::size_t>(options_.identity.world_size));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto read = [&] {
    return store_thread_->run<std::vector<Beat>>(
        [watch = watch_, everyone](c10d::Store& store) {
          watch->beat(store);
          return Watch::read_beats(store, everyone);
        },
        store_patience);
  };
  // Whoever has not beaten for two and a half beats is given as long again: a busy machine delays beats.
  const auto before = read();
  auto after = before;
  const auto is_silent = [&](std::int64_t rank) {
    const auto i = static_cast<std::size_t>(rank);
    return rank != options_.identity.rank && !watch_->left(rank) && (*after)[i].tick == (*before)[i].tick;
  };
  for (int turn = 0; turn < 2 && after; ++turn) {
    std::this_thread::sleep_for(beat_interval(options_.identity.world_size) * 5 / 2);
    after = read();
    if (after && std::none_of(everyone.begin(), everyone.end(), is_silent)) break;
  }
  if (!after) return "missing: rank 0 (its store does not answer: stopped, dead or cut off)";
  const auto join = [](std::string& list, std::int64_t rank, const char* state) {
    list += (list.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" + state + ")";
  };
  constexpr const char* silence = "does not respond: stopped, dead or cut off";
  std::string silent, behind, elsewhere;
  for (const auto rank : everyone) {
    if (std::find(peers.begin(), peers.end(), rank) == peers.end()) {
      if (is_silent(rank)) join(elsewhere, rank, silence);
      continue;
    }
    const auto last = watch_->left(rank);
    const Issued& issued = last ? last->issued : (*after)[static_cast<std::size_t>(rank)].issued;
    const auto found = issued.find(progress.key);
    const bool called =
        is_point_to_point(call) ? !last : found != issued.end() && found->second > call.sequence;
    if (last && called) continue;
    if (last)
      join(silent, rank, "has already ended, in order");
    else if (is_silent(rank))
      join(silent, rank, silence);
    else if (!called)
      join(behind, rank, "has not called it");
  }
  const std::string all = silent + (silent.empty() || behind.empty() ? "" : ", ") + behind;
  return (all.empty() ? "" : "missing: " + all) + (all.empty() || elsewhere.empty() ? "" : "; ") +
         (elsewhere.empty() ? "" : "in another group: " + elsewhere);
}

void ProcessWorld::fail(const GroupIdentity& group, const GroupProgress& progress, const Call& call,
                        const std::string& symptom) {
  store_thread_->run<bool>(
      [watch = watch_](c10d::Store& store) {
        watch->read_news(store);
        return true;
      },
      store_patience);
  const std::string start = describe(group, call) + ": ";
  if (const auto reason = reason_to_stop(group, progress, call)) {
    if (!abort_note()) post_abort(start + *reason);
    throw CommError(start + *reason);
  }
  const auto missing = find_missing(group, progress, call);
  const std::string text = start + symptom + (missing.empty() ? "" : "; " + missing);
  post_abort(text);
  throw CommError(text);
}

}  // namespace dtensor::detail
