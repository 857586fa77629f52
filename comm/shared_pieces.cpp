// Collectives in which a rank has a piece for each other one: all_to_all, scatter, reduce_scatter. Each slot of a ring
// is cut into as many regions as there are receivers; a payload takes as many slots (rounds) as its largest piece needs.
#include "comm/local_reduction.h"
#include "comm/shared_operations.h"

#include <algorithm>
#include <cstring>

namespace dtensor::detail {

namespace {

// A region begins with the piece's size, so that a receiver notices one that it does not expect.
struct Regions {
  std::size_t size = 0;  // with the line for the piece's size
  Regions(std::size_t capacity, int ranks) : size(capacity / static_cast<std::size_t>(ranks - 1) / cache_line * cache_line) {}
  std::size_t room() const { return size - cache_line; }
  std::size_t start(int from, int to, int ranks) const {
    return static_cast<std::size_t>((to - from + ranks) % ranks - 1) * size;
  }
};

struct Piece {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
};

Piece piece_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Writes the pieces for the others, round by round.
class PieceWriter {
 public:
  void set(const std::vector<at::Tensor>& inputs, const SlotAsk& ask, int rank) {
    ask_ = ask;
    is_finished_ = false;
    for (std::size_t to = 0; to < inputs.size(); ++to) {
      pieces_.push_back(piece_of(inputs[to]));
      if (static_cast<int>(to) != rank) largest_ = std::max(largest_, inputs[to].nbytes());
    }
  }

  bool step(SharedEndpoint& endpoint) {
    if (is_finished_) return true;
    const int ranks = endpoint.size();
    const Regions regions(endpoint.capacity(), ranks);
    while (!is_finished_) {
      Slot* slot = endpoint.claim();
      if (!slot) return false;
      for (int to = 0; to < ranks; ++to) {
        if (to == endpoint.rank()) continue;
        const Piece& piece = pieces_[static_cast<std::size_t>(to)];
        std::byte* region = slot->data() + regions.start(endpoint.rank(), to, ranks);
        const std::uint64_t total = piece.bytes;
        std::memcpy(region, &total, sizeof(total));
        if (piece.bytes > written_) {
          std::memcpy(region + cache_line, piece.memory + written_, std::min(piece.bytes - written_, regions.room()));
        }
      }
      written_ += regions.room();
      is_finished_ = written_ >= largest_;
      slot->ask = ask_;
      slot->bytes = slot->total = 0;
      slot->is_last = is_finished_;
      endpoint.publish();
    }
    return true;
  }

 private:
  SlotAsk ask_{};
  std::vector<Piece> pieces_;
  std::size_t largest_ = 0, written_ = 0;
  bool is_finished_ = true;
};

// The region for this rank in a slot of `owner`.
const std::byte* region_in(const Slot& slot, SharedEndpoint& endpoint, const Regions& regions, int owner,
                           const SlotAsk& ask, std::size_t expected) {
  check_ask(slot, ask, owner);
  const std::byte* region = slot.data() + regions.start(owner, endpoint.rank(), endpoint.size());
  std::uint64_t total = 0;
  std::memcpy(&total, region, sizeof(total));
  if (total != expected) refuse_size(owner, total, expected);
  return region + cache_line;
}

// all_to_all and scatter: each ring is read at its own pace.
class Exchange final : public SharedCollective {
 public:
  struct Target {
    Piece piece;
    std::size_t received = 0;
    bool is_finished = true;  // this rank sends nothing
  };

  Exchange(const Call& of_call, const SlotAsk& ask, int ranks)
      : SharedCollective(of_call), ask_(ask), targets_(static_cast<std::size_t>(ranks)) {}

  void send(const std::vector<at::Tensor>& inputs, int rank) {
    tensors_.insert(tensors_.end(), inputs.begin(), inputs.end());
    writer_.set(inputs, ask_, rank);
  }
  void receive(int owner, const at::Tensor& output) {
    tensors_.push_back(output);
    targets_[static_cast<std::size_t>(owner)] = {piece_of(output), 0, false};
  }

  bool step(SharedEndpoint& endpoint) override {
    bool is_over = writer_.step(endpoint);
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (!read(endpoint, owner)) is_over = false;
    }
    return is_over;
  }

 private:
  bool read(SharedEndpoint& endpoint, int owner) {
    auto& target = targets_[static_cast<std::size_t>(owner)];
    auto& reader = endpoint.reader(owner);
    const Regions regions(endpoint.capacity(), endpoint.size());
    while (!target.is_finished) {
      const Slot* slot = reader.peek();
      if (!slot) {
        endpoint.waits_for(owner);
        return false;
      }
      const std::byte* region = region_in(*slot, endpoint, regions, owner, ask_, target.piece.bytes);
      const auto bytes = std::min(target.piece.bytes - target.received, regions.room());
      if (bytes > 0) std::memcpy(target.piece.memory + target.received, region, bytes);
      target.received += bytes;
      target.is_finished = slot->is_last != 0;
      reader.release();
      endpoint.tell(owner);
    }
    return true;
  }

  SlotAsk ask_;
  std::vector<at::Tensor> tensors_;
  PieceWriter writer_;
  std::vector<Target> targets_;
};

// All rings advance together: round by round this rank reduces its own piece, of which its part stays where it is.
class ReduceScatter final : public SharedCollective {
 public:
  ReduceScatter(const Call& of_call, const SlotAsk& ask, const at::Tensor& output,
                const std::vector<at::Tensor>& inputs, ReduceOp op)
      : SharedCollective(of_call), ask_(ask), tensors_(inputs), dtype_(output.scalar_type()), op_(op),
        output_(piece_of(output)) {
    tensors_.push_back(output);
  }

  bool step(SharedEndpoint& endpoint) override {
    const auto own = static_cast<std::size_t>(endpoint.rank());
    if (!has_begun_) {
      has_begun_ = true;
      const std::vector<at::Tensor> inputs(tensors_.begin(), tensors_.end() - 1);
      if (inputs[own].nbytes() != output_.bytes) refuse_size(endpoint.rank(), inputs[own].nbytes(), output_.bytes);
      own_ = piece_of(inputs[own]);
      writer_.set(inputs, ask_, endpoint.rank());
      parts_.resize(inputs.size());
    }
    bool is_written = writer_.step(endpoint);
    while (!is_read_) {
      if (!reduce_round(endpoint)) return false;
      if (!is_written) is_written = writer_.step(endpoint);
    }
    return is_written;
  }

 private:
  bool reduce_round(SharedEndpoint& endpoint) {
    const Regions regions(endpoint.capacity(), endpoint.size());
    bool all_there = true, all_last = true;
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner == endpoint.rank() || has_ended(owner)) continue;
      const Slot* slot = endpoint.reader(owner).peek();
      if (!slot) {
        endpoint.waits_for(owner);
        all_there = false;
        continue;
      }
      parts_[static_cast<std::size_t>(owner)] = region_in(*slot, endpoint, regions, owner, ask_, output_.bytes);
    }
    if (!all_there) return false;
    if (reduced_ < output_.bytes) {
      parts_[static_cast<std::size_t>(endpoint.rank())] = own_.memory + reduced_;
      const auto bytes = std::min(output_.bytes - reduced_, regions.room());
      reduce_buffers(dtype_, op_, parts_, static_cast<std::int64_t>(bytes / c10::elementSize(dtype_)),
                     output_.memory + reduced_);
      reduced_ += bytes;
    }
    for (int owner = 0; owner < endpoint.size(); ++owner) {
      if (owner == endpoint.rank() || has_ended(owner)) continue;
      auto& reader = endpoint.reader(owner);
      if (reader.peek()->is_last)
        ended_.push_back(owner);
      else
        all_last = false;
      reader.release();
      endpoint.tell(owner);
    }
    is_read_ = all_last;
    return true;
  }
  // A ring has as many rounds as the largest piece of the *others* of its owner.
  bool has_ended(int owner) const { return std::find(ended_.begin(), ended_.end(), owner) != ended_.end(); }

  SlotAsk ask_;
  std::vector<at::Tensor> tensors_;  // the inputs and the output
  at::ScalarType dtype_;
  ReduceOp op_;
  Piece output_, own_;
  PieceWriter writer_;
  std::vector<const void*> parts_;
  std::vector<int> ended_;
  std::size_t reduced_ = 0;
  bool has_begun_ = false, is_read_ = false;
};

}  // namespace

SharedCollectivePointer shared_reduce_scatter(const Call& call, const at::Tensor& output,
                                              const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const auto ask = make_ask(call, output.scalar_type(), op, -1, hash_of_sizes(inputs));
  return std::make_shared<ReduceScatter>(call, ask, output, inputs, op);
}

SharedCollectivePointer shared_all_to_all(const Call& call, const std::vector<at::Tensor>& outputs,
                                          const std::vector<at::Tensor>& inputs, int rank) {
  const int ranks = static_cast<int>(inputs.size());
  auto exchange = std::make_shared<Exchange>(
      call, make_ask(call, inputs[0].scalar_type(), ReduceOp::sum, -1, 0), ranks);
  exchange->send(inputs, rank);
  for (int owner = 0; owner < ranks; ++owner) {
    const auto& output = outputs[static_cast<std::size_t>(owner)];
    const auto& input = inputs[static_cast<std::size_t>(owner)];
    if (owner != rank)
      exchange->receive(owner, output);
    else if (output.numel() != input.numel())
      refuse_size(rank, input.nbytes(), output.nbytes());
    else
      copy_elements(input, output);
  }
  return exchange;
}

SharedCollectivePointer shared_scatter(const Call& call, const at::Tensor& output,
                                       const std::vector<at::Tensor>& inputs, int source, int rank, int ranks) {
  auto exchange = std::make_shared<Exchange>(
      call, make_ask(call, output.scalar_type(), ReduceOp::sum, source, 0), ranks);
  if (rank != source) {
    exchange->receive(source, output);
    return exchange;
  }
  const auto& own = inputs[static_cast<std::size_t>(rank)];
  if (own.numel() != output.numel()) refuse_size(rank, own.nbytes(), output.nbytes());
  copy_elements(own, output);
  exchange->send(inputs, rank);
  return exchange;
}

}  // namespace dtensor::detail
