// The collectives over shared memory, each as a state machine that does what can be done without waiting. Private to
// comm/.
#pragma once

#include "comm/backend.h"
#include "comm/shared_endpoint.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

inline constexpr std::size_t cache_line = 64;  // bytes

class SharedOperation {
 public:
  explicit SharedOperation(const Call& of_call) : call(of_call) {}
  virtual ~SharedOperation() = default;

  const Call call;
  std::atomic<bool> done{false};
  std::optional<std::string> desync;  // set before `done`: what a peer did that does not fit
};
using SharedOperationPointer = std::shared_ptr<SharedOperation>;

// A collective. Operations of one group are stepped in the order in which they were issued, one at a time.
class SharedCollective : public SharedOperation {
 public:
  using SharedOperation::SharedOperation;
  // Goes on as far as possible; true once nothing is left to do on this rank. Peers may then still read what it wrote.
  // Errors: DesyncError, with no more than what the peer asked for.
  virtual bool step(SharedEndpoint& endpoint) = 0;
};
using SharedCollectivePointer = std::shared_ptr<SharedCollective>;

// Tensors are contiguous and kept alive until the operation is done.
SharedCollectivePointer shared_all_reduce(const Call& call, const at::Tensor& tensor, ReduceOp op, int ranks);
SharedCollectivePointer shared_all_gather(const Call& call, const std::vector<at::Tensor>& outputs,
                                          const at::Tensor& input, int rank);
SharedCollectivePointer shared_broadcast(const Call& call, const at::Tensor& tensor, int source, int rank,
                                         int ranks);
SharedCollectivePointer shared_barrier(const Call& call, int rank, int ranks);
SharedCollectivePointer shared_reduce_scatter(const Call& call, const at::Tensor& output,
                                              const std::vector<at::Tensor>& inputs, ReduceOp op);
SharedCollectivePointer shared_all_to_all(const Call& call, const std::vector<at::Tensor>& outputs,
                                          const std::vector<at::Tensor>& inputs, int rank);
SharedCollectivePointer shared_scatter(const Call& call, const at::Tensor& output,
                                       const std::vector<at::Tensor>& inputs, int source, int rank, int ranks);

// ---- for the files of the operations ----

SlotAsk make_ask(const Call& call, at::ScalarType dtype, ReduceOp op, int source, std::uint64_t elements);
// A hash of the sizes of a list that all ranks pass alike.
std::uint64_t hash_of_sizes(const std::vector<at::Tensor>& tensors);
// Errors: DesyncError when the slot's owner does something else.
void check_ask(const Slot& slot, const SlotAsk& mine, int owner);
[[noreturn]] void refuse_size(int owner, std::uint64_t sent, std::uint64_t expected);

}  // namespace dtensor::detail
