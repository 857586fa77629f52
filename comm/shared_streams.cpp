// Collectives in which a rank's payload goes to all others alike: all_gather, broadcast, barrier.
#include "comm/local_reduction.h"
#include "comm/shared_operations.h"
#include "placements/error.h"

#include <algorithm>
#include <cstring>

namespace dtensor::detail {

namespace {

std::string to_text(const SlotAsk& ask, bool with_elements) {
  const auto collective = static_cast<Collective>(ask.collective);
  std::string text = std::string(to_string(collective)) + "(";
  if (collective == Collective::all_reduce || collective == Collective::reduce_scatter) {
    text += std::string(dtensor::to_string(static_cast<ReduceOp>(ask.op))) + ", ";
  }
  if (ask.source >= 0) text += "source " + std::to_string(ask.source) + ", ";
  text += c10::toString(static_cast<at::ScalarType>(ask.dtype));
  const bool counts = collective == Collective::all_reduce || collective == Collective::broadcast;
  if (with_elements && counts) text += ", " + std::to_string(ask.elements) + " elements";
  if (with_elements && !counts) text += ", other sizes";
  return text + ")";
}

}  // namespace

SlotAsk make_ask(const Call& call, at::ScalarType dtype, ReduceOp op, int source, std::uint64_t elements) {
  return {static_cast<std::uint8_t>(call.collective), static_cast<std::uint8_t>(op), static_cast<std::uint8_t>(dtype),
          0, source, elements};
}

std::uint64_t hash_of_sizes(const std::vector<at::Tensor>& tensors) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const auto& tensor : tensors) hash = (hash ^ static_cast<std::uint64_t>(tensor.numel())) * 1099511628211ULL;
  return hash;
}

void check_ask(const Slot& slot, const SlotAsk& mine, int owner) {
  if (slot.ask == mine) return;
  SlotAsk other_sizes = slot.ask;
  other_sizes.elements = mine.elements;
  const bool only_sizes = other_sizes == mine;
  throw DesyncError("the ranks asked for different things:\n  this rank: " + to_text(mine, only_sizes) +
                    "\n  the group's rank " + std::to_string(owner) + ": " + to_text(slot.ask, true));
}

void refuse_size(int owner, std::uint64_t sent, std::uint64_t expected) {
  throw DesyncError("the ranks asked for different things: the group's rank " + std::to_string(owner) + " sent " +
                    std::to_string(sent) + " bytes, but " + std::to_string(expected) + " are expected");
}

namespace {

class Stream final : public SharedCollective {
 public:
  struct Target {
    std::byte* memory = nullptr;
    std::size_t bytes = 0, received = 0;
    bool is_finished = true;  // this rank sends nothing
  };

  Stream(const Call& of_call, const SlotAsk& ask, int ranks)
      : SharedCollective(of_call), ask_(ask), targets_(static_cast<std::size_t>(ranks)) {}

  void send(const at::Tensor& tensor) {
    tensors_.push_back(tensor);
    payload_ = static_cast<const std::byte*>(tensor.const_data_ptr());
    bytes_ = tensor.nbytes();
    sends_ = true;
  }
  void send_nothing() { sends_ = true; }
  void receive(int rank, const at::Tensor& tensor) {
    tensors_.push_back(tensor);
    targets_[static_cast<std::size_t>(rank)] = {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes(), 0,
                                                false};
  }
  void receive_nothing(int rank) { targets_[static_cast<std::size_t>(rank)].is_finished = false; }

  bool step(SharedEndpoint& endpoint) override {
    bool is_over = write(endpoint);
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (!read(endpoint, owner)) is_over = false;
    }
    return is_over;
  }

 private:
  bool write(SharedEndpoint& endpoint) {
    while (sends_) {
      Slot* slot = endpoint.claim();
      if (!slot) return false;
      const auto bytes = std::min(bytes_ - sent_, endpoint.capacity());
      if (bytes > 0) std::memcpy(slot->data(), payload_ + sent_, bytes);
      sent_ += bytes;
      slot->ask = ask_;
      slot->bytes = bytes;
      slot->total = bytes_;
      slot->is_last = sent_ == bytes_;
      endpoint.publish();
      sends_ = sent_ < bytes_;
    }
    return true;
  }

  bool read(SharedEndpoint& endpoint, int owner) {
    auto& target = targets_[static_cast<std::size_t>(owner)];
    auto& reader = endpoint.reader(owner);
    while (!target.is_finished) {
      const Slot* slot = reader.peek();
      if (!slot) {
        endpoint.waits_for(owner);
        return false;
      }
      check_ask(*slot, ask_, owner);
      if (slot->total != target.bytes) refuse_size(owner, slot->total, target.bytes);
      if (slot->bytes > 0) std::memcpy(target.memory + target.received, slot->data(), slot->bytes);
      target.received += slot->bytes;
      target.is_finished = slot->is_last != 0;
      reader.release();
      endpoint.tell(owner);
    }
    return true;
  }

  SlotAsk ask_;
  std::vector<at::Tensor> tensors_;
  const std::byte* payload_ = nullptr;
  std::size_t bytes_ = 0, sent_ = 0;
  bool sends_ = false;
  std::vector<Target> targets_;
};

}  // namespace

SharedCollectivePointer shared_all_gather(const Call& call, const std::vector<at::Tensor>& outputs,
                                          const at::Tensor& input, int rank) {
  const int ranks = static_cast<int>(outputs.size());
  const auto ask = make_ask(call, input.scalar_type(), ReduceOp::sum, -1, hash_of_sizes(outputs));
  auto stream = std::make_shared<Stream>(call, ask, ranks);
  stream->send(input);
  for (int owner = 0; owner < ranks; ++owner) {
    const auto& output = outputs[static_cast<std::size_t>(owner)];
    if (owner != rank)
      stream->receive(owner, output);
    else if (output.numel() != input.numel())
      refuse_size(rank, input.nbytes(), output.nbytes());
    else
      copy_elements(input, output);
  }
  return stream;
}

SharedCollectivePointer shared_broadcast(const Call& call, const at::Tensor& tensor, int source, int rank,
                                         int ranks) {
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  const auto ask = make_ask(call, tensor.scalar_type(), ReduceOp::sum, source, elements);
  auto stream = std::make_shared<Stream>(call, ask, ranks);
  if (rank == source)
    stream->send(tensor);
  else
    stream->receive(source, tensor);
  return stream;
}

SharedCollectivePointer shared_barrier(const Call& call, int rank, int ranks) {
  auto stream = std::make_shared<Stream>(call, make_ask(call, at::kByte, ReduceOp::sum, -1, 0), ranks);
  stream->send_nothing();
  for (int owner = 0; owner < ranks; ++owner) {
    if (owner != rank) stream->receive_nothing(owner);
  }
  return stream;
}

}  // namespace dtensor::detail
