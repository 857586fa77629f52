// send and recv over shared memory: a ring for each ordered pair of ranks. Private to comm/.
//
// A receiver takes whatever comes off the ring: what nobody asks for yet is kept in memory of its own, so that tags may
// be asked for in any order, and a ring of ranks that all send first does not stall.
#pragma once

#include "comm/shared_operations.h"

#include <deque>
#include <map>

namespace dtensor::detail {

class SharedMail {
 public:
  SharedMail(Segment& segment, int rank);

  SharedOperationPointer send(const Call& call, const at::Tensor& tensor, int destination, int tag);
  SharedOperationPointer recv(const Call& call, const at::Tensor& tensor, int source, int tag);
  // Goes on with everything that does not have to wait.
  void step();
  // Sends and receives that are not done.
  int pending() const { return pending_; }

 private:
  struct Send;
  struct Recv;
  // A message, or what has come of it.
  struct Letter {
    SlotAsk ask{};
    std::uint64_t total = 0;
    std::vector<std::byte> bytes;
    bool is_whole = false;
    std::shared_ptr<Recv> taker;
  };
  struct Peer {
    RingWriter writer;
    RingReader reader;
    std::deque<std::shared_ptr<Send>> sends;
    std::map<int, std::deque<std::shared_ptr<Recv>>> recvs;      // by tag, unanswered
    std::map<int, std::deque<std::shared_ptr<Letter>>> letters;  // by tag, not asked for
    std::shared_ptr<Letter> open;                                // of which more slots will come
  };

  void push(int destination, Peer& peer);
  void pull(int source, Peer& peer);
  void deliver(int source, Letter& letter);
  void finish(SharedOperation& operation);

  Segment& segment_;
  int rank_;
  int pending_ = 0;
  std::vector<Peer> peers_;
};

}  // namespace dtensor::detail
