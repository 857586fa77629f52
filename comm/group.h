// Group: the ranks along one mesh dimension (or several), and the collectives among them.
#pragma once

#include "comm/counters.h"
#include "placements/placement.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace dtensor {

class World;
namespace detail {
class Backend;
class BackendWork;
struct Call;
struct GroupIdentity;
}  // namespace detail

// A collective under way. Keeps its tensors alive until it is done.
class Work {
 public:
  Work();  // already done
  explicit Work(std::unique_ptr<detail::BackendWork> work);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();  // does not wait

  // Orders the current CUDA stream after the collective; on CPU blocks until it is done.
  // Errors: CommError with group, operator, sequence number and missing ranks on time-out or a peer's abort.
  void wait();
  // Blocks the host until it is done, on any device. Errors: as wait().
  void synchronize();
  bool is_done();

 private:
  std::unique_ptr<detail::BackendWork> work_;
};

// Ordered ranks with a backend. Made locally by its members; two groups are the same when ordered ranks,
// backend and label are. All members must call the same collectives in the same order, from one thread a
// rank. Every collective returns a Work; tensors must be dense (contiguous) and on the group's device,
// outputs of the stated sizes. Sizes may differ between ranks where lists are taken; empty tensors are
// allowed everywhere. Errors, all of them: CommError (time-out, dead peer, abort note, wrong argument),
// DesyncError (another collective, dtype or size on a peer, where the backend can tell).
class Group : public c10::intrusive_ptr_target {
 public:
  int rank() const { return rank_; }  // this rank's position in ranks()
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }  // global ranks
  const std::string& label() const { return label_; }
  World& world() const { return *world_; }
  const char* backend_name() const;
  std::int64_t sequence() const { return sequence_; }  // collectives issued so far

  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;

  // In place. avg divides the sum by size(); integers: truncating division. bool: sum and max are "any",
  // product and min are "all".
  [[nodiscard]] Work all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::sum);
  // outputs[i] receives rank i's `input`; sizes may differ between ranks.
  [[nodiscard]] Work all_gather(std::vector<at::Tensor>& outputs, const at::Tensor& input);
  // Output receives the reduction of inputs[rank()] over all ranks; inputs[i] has rank i's size.
  [[nodiscard]] Work reduce_scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                    ReduceOp op = ReduceOp::sum);
  // outputs[i] receives rank i's inputs[rank()].
  [[nodiscard]] Work all_to_all(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);
  [[nodiscard]] Work broadcast(at::Tensor& tensor, int source = 0);
  // Output receives source's inputs[rank()]; inputs is read on the source only.
  [[nodiscard]] Work scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, int source = 0);
  [[nodiscard]] Work send(const at::Tensor& tensor, int destination, int tag = 0);
  [[nodiscard]] Work recv(at::Tensor& tensor, int source, int tag = 0);
  void barrier();

  // A group of the same ranks with connections of its own, for a background user. `label` names it; the same
  // label gives the same group. What it communicates counts as this group's.
  c10::intrusive_ptr<Group> duplicate(const std::string& label) const;

  // Lets another thread issue from now on: the first that does.
  void release_thread();

  Group(World& world, const detail::GroupIdentity& identity, std::unique_ptr<detail::Backend> backend);
  ~Group() override;

 private:
  class Issue;
  detail::GroupIdentity identity() const;
  // Number, counters, one-thread check of the next collective, for as long as it is being issued.
  Issue issue(Collective collective, std::int64_t bytes, int peer = -1);
  void check_tensor(Collective collective, const at::Tensor& tensor, const char* what) const;
  void check_list(Collective collective, const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                  const char* what) const;
  void check_peer(Collective collective, int peer, const char* what) const;
  [[noreturn]] void refuse(Collective collective, const std::string& text) const;

  World* world_;
  std::vector<std::int64_t> ranks_;
  std::string label_;
  std::string counted_as_;  // the label, of the original if this is a duplicate
  c10::DeviceType device_type_;
  std::unique_ptr<detail::Backend> backend_;
  int rank_ = 0;
  std::int64_t sequence_ = 0;
  std::int64_t point_to_point_sequence_ = 0;
  std::atomic<std::thread::id> owner_{};  // the thread that issues; none before the first collective
  std::atomic<bool> issuing_{false};
};

}  // namespace dtensor
