// The memory that the ranks of one group share: rings for collectives, letter boxes for send and recv, a bell for each
// rank. Private to comm/.
//
// It is an anonymous file (memfd): the first rank makes it, the others open it through /proc. So there is no name that
// a killed process could leave behind, and no limit of a /dev/shm mount; the kernel frees it with its last user.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace dtensor::detail {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// What a rank says of the collective that a slot belongs to; the readers compare it with what they themselves do.
struct SlotAsk {
  std::uint8_t collective, op, dtype, unused;
  std::int32_t source;
  std::uint64_t elements;  // or, where lists are taken, a hash of all sizes that every rank knows
  friend bool operator==(const SlotAsk&, const SlotAsk&) = default;
};

// One message of a ring. Small ones share the header's cache line's neighbours, so that a reader fetches little.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> ready;    // the slot's number + 1 once the message is there
  std::atomic<std::uint64_t> reduced;  // the same once the owner's slice holds the reduction (all_reduce)
  SlotAsk ask;
  std::uint64_t bytes;  // in this slot
  std::uint64_t total;  // of the whole payload, which may take several slots
  std::int32_t tag;     // of a letter
  std::uint32_t is_last;
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(this + 1); }
};

// Where a rank sleeps. Who changes something that it may wait for looks at `sleepers`, and rings.
struct alignas(128) Bell {
  std::atomic<std::uint32_t> rings, sleepers;
  void ring();
};

// How far a reader is in a ring: slots it needs no more.
struct ReadMark {
  std::atomic<std::uint64_t> released;
};

// A row of slots in the segment; slot number n lies at place n % depth.
struct Ring {
  std::byte* start;
  std::size_t depth, stride;
  std::size_t capacity() const { return stride - sizeof(Slot); }
  Slot& slot(std::uint64_t number) const { return *reinterpret_cast<Slot*>(start + number % depth * stride); }
};

class Segment {
 public:
  // Errors: std::runtime_error with the system's reason.
  static std::unique_ptr<Segment> create(int ranks);
  static std::unique_ptr<Segment> open(const std::string& address, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const std::string& address() const { return address_; }  // of the maker; good until everybody has it
  void attach() { header().attached.fetch_add(1); }
  int attached() const { return static_cast<int>(header().attached.load()); }
  void close_address();  // once everybody is attached

  int ranks() const { return ranks_; }
  Bell& bell(int rank) const;
  Ring ring(int owner) const;
  Ring letter_box(int from, int to) const;
  ReadMark& ring_mark(int owner, int reader) const;
  ReadMark& letter_mark(int from, int to) const;

 private:
  struct Header {
    std::atomic<std::uint32_t> attached;
  };
  Segment(int file, int ranks);
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  std::size_t place(int row, int column) const;

  int ranks_;
  int file_;
  std::string address_;
  std::byte* memory_ = nullptr;
  // Offsets in bytes; the data areas are sparse: pages exist once they are written.
  std::size_t bells_, ring_marks_, letter_marks_, rings_, letters_, size_;
};

}  // namespace dtensor::detail
