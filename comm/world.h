// World: this rank, its peers and everything that belongs to the run rather than to one tensor.
#pragma once

#include "comm/counters.h"
#include "comm/group.h"
#include "comm/policy.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

struct InitOptions {
  // "auto": NCCL for CUDA meshes; for CPU meshes of processes shared memory among ranks of one host, else Gloo. Or
  // "shared_memory", "gloo", "nccl". The same on all ranks.
  std::string backend = "auto";
  std::chrono::milliseconds startup_timeout = std::chrono::seconds(300);
  std::chrono::milliseconds timeout = std::chrono::seconds(100);
  // Set all or none; none = from the environment (torchrun, Open MPI, PMI, SLURM), or a world of one.
  std::optional<int> rank = {}, world_size = {}, local_rank = {};
  std::string master_address = {};
  int master_port = 0;
};

namespace detail {
class WorldState;  // backend-specific: store, thread hub, abort state
}

// One per process (or per rank thread under run_ranks). Tensors reach it through their mesh.
class World {
 public:
  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  // How the ranks were found: "torchrun", "Open MPI", "PMI", "SLURM", "options", "threads", "single".
  const std::string& source() const { return source_; }

  // The group of these global ranks, in this order, for tensors on `device_type`. The same arguments give the
  // same object. Local: does not talk to ranks outside `ranks`. Must hold this rank.
  Group& group(const std::vector<std::int64_t>& ranks, const std::string& label, c10::DeviceType device_type);
  // All ranks, labelled "world".
  Group& group(c10::DeviceType device_type = c10::DeviceType::CPU);

  const Policy& policy() const { return policy_; }
  void set_policy(Policy policy) { policy_ = policy; }

  CollectiveTallies tallies() const;
  void record(const std::string& group, Collective collective, std::int64_t bytes);  // called by Group

  // Posts an abort note: every peer that waits on this World throws CommError with this rank and text within
  // 5 s.
  void abort(const std::string& text) noexcept;
  // The text of the abort note if there is one.
  std::optional<std::string> abort_note() const;

  std::chrono::milliseconds timeout() const;  // of each collective, unless its group says otherwise

  // Lets another thread issue collectives from now on (see Group: one thread per rank issues). For programs
  // that set up on one thread and train on another.
  void release_thread();

  // A named slot for state of upper rooms that belongs to this World (random state, caches, ...); made by
  // `make` at first use, destroyed with the World.
  template <typename T>
  T& slot() {
    auto& holder = slot(&slot_tag<T>);
    if (!holder) holder = std::make_shared<T>();
    return *static_cast<T*>(holder.get());
  }

  World(int rank, int size, int local_rank, std::string source, std::shared_ptr<detail::WorldState> state);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The World of the calling thread: set by init() for the process, by run_ranks() for a rank thread.
  // Errors: MeshError that says to call init().
  static World& current();
  static World* current_or_null();
  // Makes `world` current for the calling thread (nullptr: none); returns the former one.
  static World* exchange_current(World* world);

  detail::WorldState& state() const { return *state_; }

 private:
  template <typename T>
  static constexpr char slot_tag = 0;
  std::shared_ptr<void>& slot(const void* tag);

  int rank_, size_, local_rank_;
  std::string source_;
  Policy policy_;
  std::shared_ptr<detail::WorldState> state_;
  struct Book;
  std::unique_ptr<Book> book_;  // groups, tallies, slots
};

// Starts this rank (or returns the World there is): rank and world size from the environment of torchrun,
// Open MPI, PMI or SLURM, else a world of one. Registers the interception on first use. Errors: MeshError
// when two launchers' variables disagree or a variable is malformed; CommError when peers do not come within
// the start-up time-out.
World& init(InitOptions options = {});
// Ends this rank's World. Idempotent. Tensors of its meshes may be destroyed afterwards but not used.
void shutdown();

}  // namespace dtensor
