#include "comm/shared_mail.h"

#include <algorithm>
#include <cstring>

namespace dtensor::detail {

struct SharedMail::Send final : SharedOperation {
  Send(const Call& of_call, const at::Tensor& of_tensor, int of_tag)
      : SharedOperation(of_call), tensor(of_tensor), tag(of_tag) {}
  at::Tensor tensor;
  int tag;
  std::size_t sent = 0;
};

struct SharedMail::Recv final : SharedOperation {
  Recv(const Call& of_call, const at::Tensor& of_tensor) : SharedOperation(of_call), tensor(of_tensor) {}
  at::Tensor tensor;
};

namespace {

SlotAsk ask_of(const at::Tensor& tensor) {
  return {static_cast<std::uint8_t>(Collective::send), 0, static_cast<std::uint8_t>(tensor.scalar_type()), 0, -1,
          static_cast<std::uint64_t>(tensor.numel())};
}

std::string to_text(const SlotAsk& ask) {
  return std::string(c10::toString(static_cast<at::ScalarType>(ask.dtype))) + ", " + std::to_string(ask.elements) +
         " elements";
}

}  // namespace

SharedMail::SharedMail(Segment& segment, int rank) : segment_(segment), rank_(rank) {
  for (int other = 0; other < segment.ranks(); ++other) {
    peers_.push_back({RingWriter(segment.letter_box(rank, other), {&segment.letter_mark(rank, other)}),
                      RingReader(segment.letter_box(other, rank), segment.letter_mark(other, rank)),
                      {},
                      {},
                      {},
                      nullptr});
  }
}

SharedOperationPointer SharedMail::send(const Call& call, const at::Tensor& tensor, int destination, int tag) {
  auto& peer = peers_[static_cast<std::size_t>(destination)];
  auto send = std::make_shared<Send>(call, tensor, tag);
  ++pending_;
  peer.sends.push_back(send);
  push(destination, peer);
  return send;
}

SharedOperationPointer SharedMail::recv(const Call& call, const at::Tensor& tensor, int source, int tag) {
  auto& peer = peers_[static_cast<std::size_t>(source)];
  auto recv = std::make_shared<Recv>(call, tensor);
  ++pending_;
  auto& letters = peer.letters[tag];
  if (letters.empty()) {
    peer.recvs[tag].push_back(recv);
    pull(source, peer);
    return recv;
  }
  const auto letter = letters.front();
  letters.pop_front();
  letter->taker = recv;
  if (letter->is_whole) deliver(source, *letter);
  return recv;
}

void SharedMail::step() {
  for (int other = 0; other < segment_.ranks(); ++other) {
    if (other == rank_) continue;
    auto& peer = peers_[static_cast<std::size_t>(other)];
    push(other, peer);
    pull(other, peer);
  }
}

void SharedMail::push(int destination, Peer& peer) {
  while (!peer.sends.empty()) {
    auto& send = *peer.sends.front();
    Slot* slot = peer.writer.claim();
    if (!slot) return;
    const auto total = send.tensor.nbytes();
    const auto bytes = std::min(total - send.sent, peer.writer.capacity());
    if (bytes > 0) {
      std::memcpy(slot->data(), static_cast<const std::byte*>(send.tensor.const_data_ptr()) + send.sent, bytes);
    }
    send.sent += bytes;
    slot->ask = ask_of(send.tensor);
    slot->bytes = bytes;
    slot->total = total;
    slot->tag = send.tag;
    slot->is_last = send.sent == total;
    const bool is_last = slot->is_last != 0;
    peer.writer.publish();
    segment_.bell(destination).ring();
    if (is_last) {
      finish(send);
      peer.sends.pop_front();
    }
  }
}

void SharedMail::pull(int source, Peer& peer) {
  while (const Slot* slot = peer.reader.peek()) {
    if (!peer.open) {
      peer.open = std::make_shared<Letter>();
      peer.open->ask = slot->ask;
      peer.open->total = slot->total;
      auto& waiting = peer.recvs[slot->tag];
      if (waiting.empty()) {
        peer.letters[slot->tag].push_back(peer.open);
      } else {
        peer.open->taker = waiting.front();
        waiting.pop_front();
      }
    }
    auto& letter = *peer.open;
    // One slot to somebody who fits: straight to its place.
    const bool is_whole = slot->is_last != 0;
    const auto size = static_cast<std::ptrdiff_t>(slot->bytes);
    if (is_whole && letter.bytes.empty() && letter.taker && letter.ask == ask_of(letter.taker->tensor)) {
      if (size > 0) std::memcpy(letter.taker->tensor.mutable_data_ptr(), slot->data(), slot->bytes);
      finish(*letter.taker);
      peer.open = nullptr;
    } else {
      if (letter.bytes.empty()) letter.bytes.reserve(letter.total);
      letter.bytes.insert(letter.bytes.end(), slot->data(), slot->data() + size);
    }
    peer.reader.release();
    segment_.bell(source).ring();
    if (is_whole && peer.open) {
      letter.is_whole = true;
      const auto whole = std::move(peer.open);
      peer.open = nullptr;
      if (whole->taker) deliver(source, *whole);
    }
  }
}

void SharedMail::deliver(int source, Letter& letter) {
  auto& recv = *letter.taker;
  if (letter.ask != ask_of(recv.tensor)) {
    recv.desync = "the group's rank " + std::to_string(source) + " sent " + to_text(letter.ask) + ", but " +
                  to_text(ask_of(recv.tensor)) + " are expected";
  } else if (!letter.bytes.empty()) {
    std::memcpy(recv.tensor.mutable_data_ptr(), letter.bytes.data(), letter.bytes.size());
  }
  finish(recv);
}

void SharedMail::finish(SharedOperation& operation) {
  operation.done.store(true);
  --pending_;
}

}  // namespace dtensor::detail
