#include "comm/shared_endpoint.h"

#include <algorithm>

namespace dtensor::detail {

Slot* RingWriter::claim() {
  if (next_ - released_ >= ring_.depth) {
    released_ = readers_[slowest()]->released.load();
    if (next_ - released_ >= ring_.depth) return nullptr;
  }
  return &ring_.slot(next_);
}

void RingWriter::publish() {
  ring_.slot(next_).ready.store(next_ + 1);  // sequentially consistent: before the look at who sleeps
  ++next_;
}

std::size_t RingWriter::slowest() const {
  std::size_t slowest = 0;
  for (std::size_t i = 1; i < readers_.size(); ++i) {
    if (readers_[i]->released.load() < readers_[slowest]->released.load()) slowest = i;
  }
  return slowest;
}

namespace {

std::vector<const ReadMark*> marks_of(const Segment& segment, int owner) {
  std::vector<const ReadMark*> marks;
  for (int reader = 0; reader < segment.ranks(); ++reader) {
    if (reader != owner) marks.push_back(&segment.ring_mark(owner, reader));
  }
  return marks;
}

}  // namespace

SharedEndpoint::SharedEndpoint(std::unique_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)), rank_(rank), writer_(segment_->ring(rank), marks_of(*segment_, rank)) {
  for (int owner = 0; owner < size(); ++owner) {
    readers_.emplace_back(segment_->ring(owner), segment_->ring_mark(owner, rank));
  }
}

Slot* SharedEndpoint::claim() {
  Slot* slot = writer_.claim();
  if (!slot) {
    const auto reader = static_cast<int>(writer_.slowest());
    waits_for(reader < rank_ ? reader : reader + 1);
  }
  return slot;
}

void SharedEndpoint::publish() {
  writer_.publish();
  tell_all();
}

void SharedEndpoint::tell_all() {
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) tell(other);
  }
}

}  // namespace dtensor::detail
