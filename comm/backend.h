// The same few functions for every backend. Private to comm/: everybody else uses Group.
#pragma once

#include "comm/counters.h"
#include "placements/placement.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dtensor::detail {

// What a backend must know of the group it serves.
struct GroupIdentity {
  std::vector<std::int64_t> ranks;  // global, in the group's order
  int rank = 0;                     // this rank's position in `ranks`
  std::string label;
  c10::DeviceType device_type = c10::DeviceType::CPU;

  int size() const { return static_cast<int>(ranks.size()); }
};

// One collective as its group numbers it. Sends and receives are numbered apart: only two ranks know of them.
struct Call {
  Collective collective;
  std::int64_t sequence;
  int peer = -1;  // of a send or receive: the other rank's position in the group
};

// "all_reduce, sequence 12, on group 'tp' (ranks 0, 1), rank 1": how every error of a collective begins.
std::string describe(const GroupIdentity& group, const Call& call);
// "ranks 2, 3" / "rank 2"
std::string describe_ranks(const std::vector<std::int64_t>& ranks);

class BackendWork {
 public:
  virtual ~BackendWork() = default;
  virtual void wait() = 0;
  virtual void synchronize() { wait(); }
  virtual bool is_done() = 0;
};
using BackendWorkPointer = std::unique_ptr<BackendWork>;  // nullptr: done at once

// Collectives among the ranks of one group. Argument checks, counters and sequence numbers are Group's
// business: tensors arrive defined, contiguous, of one dtype (in reductions never bool), on the group's
// device type, with lists of the group's size.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual BackendWorkPointer all_reduce(const Call& call, at::Tensor& tensor, ReduceOp op) = 0;
  virtual BackendWorkPointer all_gather(const Call& call, std::vector<at::Tensor>& outputs,
                                        const at::Tensor& input) = 0;
  virtual BackendWorkPointer reduce_scatter(const Call& call, at::Tensor& output,
                                            const std::vector<at::Tensor>& inputs, ReduceOp op) = 0;
  virtual BackendWorkPointer all_to_all(const Call& call, std::vector<at::Tensor>& outputs,
                                        const std::vector<at::Tensor>& inputs) = 0;
  virtual BackendWorkPointer broadcast(const Call& call, at::Tensor& tensor, int source) = 0;
  virtual BackendWorkPointer scatter(const Call& call, at::Tensor& output,
                                     const std::vector<at::Tensor>& inputs, int source) = 0;
  virtual BackendWorkPointer send(const Call& call, const at::Tensor& tensor, int destination, int tag) = 0;
  virtual BackendWorkPointer recv(const Call& call, at::Tensor& tensor, int source, int tag) = 0;
  virtual void barrier(const Call& call) = 0;
};

// A group of one rank: every collective is a local copy.
std::unique_ptr<Backend> make_local_backend(GroupIdentity group);

}  // namespace dtensor::detail
