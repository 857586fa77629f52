// One rank's end of a segment: it writes its own ring, reads those of the others, and never waits. Private to comm/.
#pragma once

#include "comm/segment.h"

#include <memory>
#include <vector>

namespace dtensor::detail {

// The writing side of a ring with one or more readers.
class RingWriter {
 public:
  RingWriter(Ring ring, std::vector<const ReadMark*> readers) : ring_(ring), readers_(std::move(readers)) {}

  std::size_t capacity() const { return ring_.capacity(); }
  // The next slot to fill; nullptr while a reader still needs what it held before.
  Slot* claim();
  // Hands the claimed slot to the readers. Their bells are rung by the caller.
  void publish();
  // The place in `readers` of one that claim() waits for.
  std::size_t slowest() const;
  std::uint64_t next() const { return next_; }
  Slot& slot(std::uint64_t number) { return ring_.slot(number); }

 private:
  Ring ring_;
  std::vector<const ReadMark*> readers_;
  std::uint64_t next_ = 0;      // number of the slot to be published next
  std::uint64_t released_ = 0;  // by all readers, as far as is known
};

// The reading side.
class RingReader {
 public:
  RingReader(Ring ring, ReadMark& mark) : ring_(ring), mark_(&mark) {}

  // The slot `ahead` places after the first that was not released; nullptr while it is not there.
  const Slot* peek(std::uint64_t ahead = 0) const {
    const Slot& slot = ring_.slot(next_ + ahead);
    return slot.ready.load() == next_ + ahead + 1 ? &slot : nullptr;
  }
  // Whether a slot that peek() gave holds its owner's part of the reduction by now.
  bool is_reduced(std::uint64_t ahead = 0) const {
    return ring_.slot(next_ + ahead).reduced.load() == next_ + ahead + 1;
  }
  void release() { mark_->released.store(++next_); }

 private:
  Ring ring_;
  ReadMark* mark_;
  std::uint64_t next_ = 0;
};

class SharedEndpoint {
 public:
  SharedEndpoint(std::unique_ptr<Segment> segment, int rank);

  int rank() const { return rank_; }
  int size() const { return segment_->ranks(); }
  Segment& segment() { return *segment_; }
  Bell& bell() { return segment_->bell(rank_); }

  std::size_t capacity() const { return writer_.capacity(); }
  Slot* claim();  // of the own ring; notes whom it waits for
  void publish();
  RingReader& reader(int rank) { return readers_[static_cast<std::size_t>(rank)]; }
  // Tells a ring's owner, after release().
  void tell(int rank) { segment_->bell(rank).ring(); }
  void tell_all();

  // The own ring's slot that holds chunk `number` and its mark that the own slice is reduced.
  RingWriter& writer() { return writer_; }

  // The ranks (positions in the group) that the last step of an operation found wanting.
  void waits_for(int rank) { awaited_.push_back(rank); }
  std::vector<int>& awaited() { return awaited_; }

 private:
  std::unique_ptr<Segment> segment_;
  int rank_;
  RingWriter writer_;
  std::vector<RingReader> readers_;
  std::vector<int> awaited_;
};

}  // namespace dtensor::detail
