// Ranks as threads. Every rank posts what it wants of a collective; the one that comes last checks that all
// want the same and does the work for everybody, in rank order, so that all ranks get the same bits. Nobody
// needs to wait before Work::wait(). The tensors belong to the round until it is done, so a rank that gave up
// frees nothing that another still writes to.
#include "comm/threads.h"

#include "comm/thread_round.h"
#include "placements/error.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>

namespace dtensor::detail {

namespace {

// What the members of one group share.
struct ThreadGroup {
  struct Mailbox {
    std::int64_t sent = 0, asked = 0;
    std::map<std::int64_t, at::Tensor> letters;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::int64_t, std::shared_ptr<ThreadRound>> rounds;  // by sequence; until all members have come
  std::map<std::tuple<int, int, int>, Mailbox> mail;            // by source, destination, tag
};

}  // namespace

class ThreadHub {
 public:
  ThreadHub(int world_size, std::chrono::milliseconds timeout)
      : timeout_(timeout), ended_(static_cast<std::size_t>(world_size)) {}

  std::chrono::milliseconds timeout() const { return timeout_; }
  int world_size() const { return static_cast<int>(ended_.size()); }
  bool has_ended(std::int64_t rank) const { return ended_[static_cast<std::size_t>(rank)].load(); }

  std::optional<std::string> note() const {
    if (!aborted_.load()) return std::nullopt;
    const std::lock_guard lock(note_mutex_);
    return note_;
  }

  void post(int rank, const std::string& text) {
    {
      const std::lock_guard lock(note_mutex_);
      if (note_) return;  // the first tells the cause
      note_ = "rank " + std::to_string(rank) + ": " + text;
      aborted_.store(true);
    }
    wake_all();
  }

  void end(int rank) {
    ended_[static_cast<std::size_t>(rank)].store(true);
    wake_all();
  }

  std::shared_ptr<ThreadGroup> group(const GroupIdentity& identity) {
    const std::lock_guard lock(groups_mutex_);
    auto& entry = groups_[{identity.ranks, identity.label}];
    if (!entry) entry = std::make_shared<ThreadGroup>();
    return entry;
  }

 private:
  void wake_all() {
    const std::lock_guard lock(groups_mutex_);
    for (auto& [key, group] : groups_) {
      const std::lock_guard group_lock(group->mutex);
      group->changed.notify_all();
    }
  }

  std::chrono::milliseconds timeout_;
  std::vector<std::atomic<bool>> ended_;
  std::atomic<bool> aborted_{false};
  // Order of locks: groups_mutex_, a group's mutex, note_mutex_.
  mutable std::mutex note_mutex_;
  std::optional<std::string> note_;
  std::mutex groups_mutex_;
  std::map<std::pair<std::vector<std::int64_t>, std::string>, std::shared_ptr<ThreadGroup>> groups_;
};

namespace {

// One rank's end of a group; shared with the works it gave out, which may outlive the group.
struct Member {
  std::shared_ptr<ThreadHub> hub;
  std::shared_ptr<ThreadGroup> group;
  GroupIdentity identity;
  std::atomic<std::chrono::milliseconds> timeout;

  [[noreturn]] void fail(const Call& call, const std::string& text) const {
    throw CommError(describe(identity, call) + ": " + text);
  }

  void check_abort(const Call& call) const {
    if (const auto note = hub->note()) fail(call, "the run was aborted by " + *note);
  }

  std::int64_t global_rank(int position) const { return identity.ranks[static_cast<std::size_t>(position)]; }

  // Waits under the group's lock until `is_ready()`. `missing()` names the global ranks that are waited for.
  template <typename IsReady, typename Missing>
  void wait_until(std::unique_lock<std::mutex>& lock, const Call& call, const IsReady& is_ready,
                  const Missing& missing) const {
    const auto limit = timeout.load();
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!is_ready()) {
      check_abort(call);
      for (const auto rank : missing()) {
        if (hub->has_ended(rank)) fail(call, "rank " + std::to_string(rank) + " has already ended");
      }
      if (group->changed.wait_until(lock, deadline) == std::cv_status::timeout && !is_ready() &&
          !missing().empty()) {
        throw CommError(describe(identity, call) + ": timed out after " + std::to_string(limit.count()) +
                        " ms; missing: " + describe_ranks(missing()));
      }
    }
  }
};

class RoundWork final : public BackendWork {
 public:
  RoundWork(std::shared_ptr<Member> member, std::shared_ptr<ThreadRound> round, Call call)
      : member_(std::move(member)), round_(std::move(round)), call_(call) {}

  void wait() override {
    std::unique_lock lock(member_->group->mutex);
    try {
      member_->wait_until(
          lock, call_, [&] { return round_->is_over(); },
          [&] { return round_->missing(member_->identity.ranks); });
    } catch (const CommError& error) {
      if (!round_->is_over()) round_->give_up(error.what_without_backtrace());
      member_->group->changed.notify_all();
      throw;
    }
    round_->rethrow();
  }
  bool is_done() override {
    const std::lock_guard lock(member_->group->mutex);
    return round_->is_over();
  }

 private:
  std::shared_ptr<Member> member_;
  std::shared_ptr<ThreadRound> round_;
  Call call_;
};

class RecvWork final : public BackendWork {
 public:
  RecvWork(std::shared_ptr<Member> member, ThreadGroup::Mailbox& box, at::Tensor tensor, int source,
           Call call)
      : member_(std::move(member)), box_(box), tensor_(std::move(tensor)), source_(source), call_(call) {
    number_ = box_.asked++;
  }

  void wait() override {
    if (received_) return;
    std::unique_lock lock(member_->group->mutex);
    const std::vector<std::int64_t> sender = {member_->global_rank(source_)};
    member_->wait_until(
        lock, call_, [&] { return box_.letters.count(number_) != 0; }, [&] { return sender; });
    const at::Tensor letter = box_.letters.at(number_);
    box_.letters.erase(number_);
    received_ = true;
    if (letter.scalar_type() != tensor_.scalar_type() || letter.numel() != tensor_.numel()) {
      throw DesyncError(describe(member_->identity, call_) + ": rank " + std::to_string(sender.front()) +
                        " sent " + describe_tensor(letter) + ", but " + describe_tensor(tensor_) +
                        " is expected");
    }
    copy_elements(letter, tensor_);
  }
  bool is_done() override {
    const std::lock_guard lock(member_->group->mutex);
    return received_ || box_.letters.count(number_) != 0;
  }

 private:
  std::shared_ptr<Member> member_;
  ThreadGroup::Mailbox& box_;
  at::Tensor tensor_;
  int source_;
  Call call_;
  std::int64_t number_;
  bool received_ = false;
};

class ThreadBackend final : public Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadHub> hub, const GroupIdentity& identity)
      : member_(std::make_shared<Member>()) {
    member_->group = hub->group(identity);
    member_->timeout = hub->timeout();
    member_->hub = std::move(hub);
    member_->identity = identity;
  }

  const char* name() const override { return "threads"; }
  void set_timeout(std::chrono::milliseconds timeout) override { member_->timeout = timeout; }
  std::chrono::milliseconds timeout() const override { return member_->timeout; }

  BackendWorkPointer all_reduce(const Call& call, at::Tensor& tensor, ReduceOp op) override {
    return post(call, {call.collective, op, 0, {tensor}, {tensor}});
  }
  BackendWorkPointer all_gather(const Call& call, std::vector<at::Tensor>& outputs,
                                const at::Tensor& input) override {
    return post(call, {call.collective, ReduceOp::sum, 0, {input}, outputs});
  }
  BackendWorkPointer reduce_scatter(const Call& call, at::Tensor& output,
                                    const std::vector<at::Tensor>& inputs, ReduceOp op) override {
    return post(call, {call.collective, op, 0, inputs, {output}});
  }
  BackendWorkPointer all_to_all(const Call& call, std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& inputs) override {
    return post(call, {call.collective, ReduceOp::sum, 0, inputs, outputs});
  }
  BackendWorkPointer broadcast(const Call& call, at::Tensor& tensor, int source) override {
    return post(call, {call.collective, ReduceOp::sum, source, {tensor}, {tensor}});
  }
  BackendWorkPointer scatter(const Call& call, at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             int source) override {
    return post(call, {call.collective, ReduceOp::sum, source, inputs, {output}});
  }
  void barrier(const Call& call) override { post(call, {call.collective, ReduceOp::sum, 0, {}, {}})->wait(); }

  // Buffered: the letter is a copy, so a ring in which all send first does not stall.
  BackendWorkPointer send(const Call& call, const at::Tensor& tensor, int destination, int tag) override {
    member_->check_abort(call);
    at::Tensor letter = copy_of(tensor);
    const std::lock_guard lock(member_->group->mutex);
    auto& box = member_->group->mail[{member_->identity.rank, destination, tag}];
    box.letters.emplace(box.sent++, std::move(letter));
    member_->group->changed.notify_all();
    return nullptr;
  }
  BackendWorkPointer recv(const Call& call, at::Tensor& tensor, int source, int tag) override {
    member_->check_abort(call);
    const std::lock_guard lock(member_->group->mutex);
    auto& box = member_->group->mail[{source, member_->identity.rank, tag}];
    return std::make_unique<RecvWork>(member_, box, tensor, source, call);
  }

 private:
  BackendWorkPointer post(const Call& call, ThreadAsk ask) {
    member_->check_abort(call);
    auto& group = *member_->group;
    const auto members = member_->identity.ranks.size();
    std::shared_ptr<ThreadRound> round;
    bool last = false;
    {
      const std::lock_guard lock(group.mutex);
      auto& entry = group.rounds[call.sequence];
      if (!entry) entry = std::make_shared<ThreadRound>(members);
      round = entry;
      last = round->arrive(member_->identity.rank, std::move(ask));
      if (last) group.rounds.erase(call.sequence);
    }
    if (last) {
      round->run(member_->identity, call);
      const std::lock_guard lock(group.mutex);
      round->finish();
      group.changed.notify_all();
    }
    return std::make_unique<RoundWork>(member_, std::move(round), call);
  }

  std::shared_ptr<Member> member_;
};

class ThreadWorldState final : public WorldState {
 public:
  ThreadWorldState(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  std::unique_ptr<Backend> make_backend(const GroupIdentity& group) override {
    return std::make_unique<ThreadBackend>(hub_, group);
  }
  void check_device(c10::DeviceType type) const override {
    if (hub_->world_size() == 1 || type == c10::DeviceType::CPU || type == c10::DeviceType::Meta) return;
    throw MeshError("ranks that are threads of one process hold CPU tensors only: a mesh on " +
                    c10::DeviceTypeName(type, true) +
                    " needs one process per rank (start it with dtensor-run)");
  }
  void post_abort(const std::string& text) noexcept override {
    try {
      hub_->post(rank_, text);
    } catch (...) {  // without memory for the text the peers still see this rank end
    }
  }
  std::optional<std::string> abort_note() const override { return hub_->note(); }
  std::chrono::milliseconds timeout() const override { return hub_->timeout(); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int rank_;
};

}  // namespace

std::shared_ptr<ThreadHub> make_thread_hub(int world_size, std::chrono::milliseconds timeout) {
  return std::make_shared<ThreadHub>(world_size, timeout);
}

std::unique_ptr<WorldState> make_thread_world_state(std::shared_ptr<ThreadHub> hub, int rank) {
  return std::make_unique<ThreadWorldState>(std::move(hub), rank);
}

void rank_has_ended(ThreadHub& hub, int rank) { hub.end(rank); }

}  // namespace dtensor::detail
