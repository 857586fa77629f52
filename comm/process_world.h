// A world of processes: its store, the watch over its peers, and what a wait that fails may say. Private to comm/.
//
// Every rank's store thread writes a *beat* twice a second: a number that grows, and how many collectives it has
// issued on each of its groups. It reads the news: the abort note and who has left. So a wait learns within a second
// why it cannot end, and a time-out can name who is missing, without any store call per collective.
#pragma once

#include "comm/environment.h"
#include "comm/world_state.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

class PeerProcesses;
class Pump;
class StoreThread;
class Watch;

// How far this rank is on one group; written when a collective is issued, read by the store thread.
struct GroupProgress {
  std::string key;  // names the group in the store
  std::atomic<std::int64_t> issued{0};
};

struct ProcessWorldOptions {
  RankIdentity identity;
  std::string backend;  // "auto", "shared_memory", "gloo" or "nccl"
  std::chrono::milliseconds startup_timeout, timeout;
};

class ProcessWorld final : public WorldState, public std::enable_shared_from_this<ProcessWorld> {
 public:
  // Meets all ranks at the store. Errors: CommError naming the ranks that do not come; MeshError when two processes
  // claim one rank or disagree on the world's size or backend.
  static std::shared_ptr<ProcessWorld> start(const ProcessWorldOptions& options);
  ~ProcessWorld() override;

  std::unique_ptr<Backend> make_backend(const GroupIdentity& group) override;
  void check_device(c10::DeviceType device_type) const override;
  void post_abort(const std::string& text) noexcept override;
  std::optional<std::string> abort_note() const override;
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  void leave() noexcept override;

  // ---- for backends ----

  const RankIdentity& identity() const { return options_.identity; }
  std::shared_ptr<GroupProgress> add_progress(const GroupIdentity& group);
  // A store of the group's own, for its backend's rendezvous.
  c10::intrusive_ptr<c10d::Store> group_store(const GroupProgress& progress) const;

  // Why a wait for `call` on this group cannot end, as far as is known by now: an abort note, a member that left
  // before it called, a lost store. Cheap: an atomic read when all is well.
  std::optional<std::string> reason_to_stop(const GroupIdentity& group, const GroupProgress& progress,
                                            const Call& call) const;
  // Announces this rank at the group and waits for the other members; returns each one's word, in the group's order.
  // Errors: CommError.
  std::vector<std::string> meet(const GroupIdentity& group, const GroupProgress& progress, const Call& call,
                                std::chrono::milliseconds patience, const std::string& word = "member");
  PeerProcesses& peers() { return *peers_; }
  Pump& pump() { return *pump_; }  // of the asynchronous work that this rank's threads must do themselves
  // Ends a collective that failed with `symptom` ("timed out after 100 ms"): finds out which members are missing, posts
  // an abort note, throws CommError.
  [[noreturn]] void fail(const GroupIdentity& group, const GroupProgress& progress, const Call& call,
                         const std::string& symptom);

 private:
  explicit ProcessWorld(const ProcessWorldOptions& options);
  void connect();
  void meet_world();
  // "missing: rank 2 (has not called it)", or "" when nobody is. Takes a second or two.
  std::string find_missing(const GroupIdentity& group, const GroupProgress& progress, const Call& call);

  ProcessWorldOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;  // of the ranks' threads: groups rendezvous over it
  std::shared_ptr<Watch> watch_;
  std::unique_ptr<StoreThread> store_thread_;
  std::unique_ptr<PeerProcesses> peers_;
  std::unique_ptr<Pump> pump_;
};

std::unique_ptr<Backend> make_shared_memory_backend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group);

// Backends over c10d; a stub file answers for one that this build lacks.
bool has_gloo();
std::unique_ptr<Backend> make_gloo_backend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group);
bool has_nccl();
std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group);

}  // namespace dtensor::detail
