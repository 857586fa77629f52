// all_reduce over shared memory. Small tensors: every rank publishes its own and reduces all, which costs one meeting
// and gives all the same bits. Large ones go by chunks: every rank publishes its chunk (without its own slice, which
// nobody else reads), reduces its slice of all chunks into its tensor and into the gap in its slot, and copies the
// other slices from the others' slots. Up to a ring's depth of chunks are under way, so ranks need not keep step.
#include "comm/local_reduction.h"
#include "comm/shared_operations.h"

#include <algorithm>
#include <cstring>

namespace dtensor::detail {

namespace {

// Up to here it is cheaper to reduce everything on every rank than to meet a second time. Measured: see
// docs/performance.md.
constexpr std::size_t small_bytes = std::size_t{32} << 10;  // over all ranks' parts

class AllReduce : public SharedCollective {
 public:
  AllReduce(const Call& of_call, const at::Tensor& tensor, ReduceOp op, int ranks)
      : SharedCollective(of_call),
        tensor_(tensor),
        memory_(static_cast<std::byte*>(tensor.mutable_data_ptr())),
        bytes_(tensor.nbytes()),
        element_(tensor.element_size()),
        ask_(make_ask(of_call, tensor.scalar_type(), op, -1, static_cast<std::uint64_t>(tensor.numel()))),
        parts_(static_cast<std::size_t>(ranks)) {}

 protected:
  // Reduces `bytes` of all parts_ into `result`.
  void reduce(std::size_t bytes, std::byte* result) {
    reduce_buffers(tensor_.scalar_type(), static_cast<ReduceOp>(ask_.op), parts_,
                   static_cast<std::int64_t>(bytes / element_), result);
  }
  const void*& part(int rank) { return parts_[static_cast<std::size_t>(rank)]; }
  void publish(SharedEndpoint& endpoint, Slot& slot, std::size_t bytes, bool is_last) {
    slot.ask = ask_;
    slot.bytes = bytes;
    slot.total = bytes_;
    slot.is_last = is_last;
    endpoint.publish();
  }

  at::Tensor tensor_;
  std::byte* memory_;
  std::size_t bytes_, element_;
  SlotAsk ask_;
  std::vector<const void*> parts_;
};

class SmallAllReduce final : public AllReduce {
 public:
  using AllReduce::AllReduce;

  bool step(SharedEndpoint& endpoint) override {
    if (!is_written_) {
      Slot* slot = endpoint.claim();
      if (!slot) return false;
      if (bytes_ > 0) std::memcpy(slot->data(), memory_, bytes_);
      publish(endpoint, *slot, bytes_, true);
      is_written_ = true;
    }
    bool all_there = true;
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner == endpoint.rank()) {
        part(owner) = memory_;
      } else if (const Slot* slot = endpoint.reader(owner).peek()) {
        check_ask(*slot, ask_, owner);
        part(owner) = slot->data();
      } else {
        endpoint.waits_for(owner);
        all_there = false;
      }
    }
    if (!all_there) return false;
    if (bytes_ > 0) reduce(bytes_, memory_);
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner != endpoint.rank()) endpoint.reader(owner).release();
    }
    endpoint.tell_all();
    return true;
  }

 private:
  bool is_written_ = false;
};

class LargeAllReduce final : public AllReduce {
 public:
  using AllReduce::AllReduce;

  bool step(SharedEndpoint& endpoint) override {
    if (chunks_ == 0) plan(endpoint);
    bool advanced = true;
    while (advanced && copied_ < chunks_) {
      advanced = copy_out(endpoint);
      advanced |= reduce_slice(endpoint);
      advanced |= write(endpoint);
    }
    return copied_ == chunks_;
  }

 private:
  struct Range {
    std::size_t start, bytes;
  };

  void plan(SharedEndpoint& endpoint) {
    ranks_ = static_cast<std::size_t>(endpoint.size());
    // Chunks of equal size, none smaller than need be.
    chunks_ = (bytes_ + endpoint.capacity() - 1) / endpoint.capacity();
    chunk_bytes_ = ((bytes_ + chunks_ - 1) / chunks_ + cache_line - 1) / cache_line * cache_line;
    chunks_ = (bytes_ + chunk_bytes_ - 1) / chunk_bytes_;
    first_slot_ = endpoint.writer().next();
  }
  std::size_t length(std::size_t chunk) const { return std::min(chunk_bytes_, bytes_ - chunk * chunk_bytes_); }
  // A rank's slice within a chunk.
  Range slice(std::size_t chunk, std::size_t rank) const {
    const auto bytes = length(chunk);
    const auto width = ((bytes + ranks_ - 1) / ranks_ + cache_line - 1) / cache_line * cache_line;
    const auto start = std::min(bytes, rank * width);
    return {start, std::min(bytes - start, width)};
  }

  bool write(SharedEndpoint& endpoint) {
    if (written_ == chunks_) return false;
    Slot* slot = endpoint.claim();
    if (!slot) return false;
    const std::byte* from = memory_ + written_ * chunk_bytes_;
    const auto bytes = length(written_);
    const auto own = slice(written_, static_cast<std::size_t>(endpoint.rank()));
    const auto after = own.start + own.bytes;
    std::memcpy(slot->data(), from, own.start);
    std::memcpy(slot->data() + after, from + after, bytes - after);
    ++written_;
    publish(endpoint, *slot, bytes, written_ == chunks_);
    return true;
  }

  bool reduce_slice(SharedEndpoint& endpoint) {
    if (reduced_ == written_) return false;
    const auto ahead = reduced_ - copied_;
    const auto own = slice(reduced_, static_cast<std::size_t>(endpoint.rank()));
    std::byte* target = memory_ + reduced_ * chunk_bytes_ + own.start;
    bool all_there = true;
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner == endpoint.rank()) {
        part(owner) = target;
      } else if (const Slot* slot = endpoint.reader(owner).peek(ahead)) {
        check_ask(*slot, ask_, owner);
        part(owner) = slot->data() + own.start;
      } else {
        endpoint.waits_for(owner);
        all_there = false;
      }
    }
    if (!all_there) return false;
    const auto number = first_slot_ + reduced_;
    Slot& slot = endpoint.writer().slot(number);
    if (own.bytes > 0) {
      reduce(own.bytes, target);
      std::memcpy(slot.data() + own.start, target, own.bytes);
    }
    slot.reduced.store(number + 1);
    ++reduced_;
    endpoint.tell_all();
    return true;
  }

  bool copy_out(SharedEndpoint& endpoint) {
    if (copied_ == reduced_) return false;
    bool all_there = true;
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner == endpoint.rank() || endpoint.reader(owner).is_reduced()) continue;
      endpoint.waits_for(owner);
      all_there = false;
    }
    if (!all_there) return false;
    std::byte* to = memory_ + copied_ * chunk_bytes_;
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner == endpoint.rank()) continue;
      auto& reader = endpoint.reader(owner);
      const auto theirs = slice(copied_, static_cast<std::size_t>(owner));
      if (theirs.bytes > 0) std::memcpy(to + theirs.start, reader.peek()->data() + theirs.start, theirs.bytes);
      reader.release();
    }
    ++copied_;
    endpoint.tell_all();
    return true;
  }

  std::size_t ranks_ = 0, chunks_ = 0, chunk_bytes_ = 0;
  std::uint64_t first_slot_ = 0;
  std::size_t written_ = 0, reduced_ = 0, copied_ = 0;  // chunks
};

}  // namespace

SharedCollectivePointer shared_all_reduce(const Call& call, const at::Tensor& tensor, ReduceOp op, int ranks) {
  if (tensor.nbytes() * static_cast<std::size_t>(ranks) <= small_bytes) {
    return std::make_shared<SmallAllReduce>(call, tensor, op, ranks);
  }
  return std::make_shared<LargeAllReduce>(call, tensor, op, ranks);
}

}  // namespace dtensor::detail
