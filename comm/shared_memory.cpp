// CPU tensors of processes of one host, over memory that they share.
//
// A group's segment has a ring of slots for each rank; collectives are state machines over the rings
// (shared_operations.h), send and recv have rings of their own (shared_mail.h). Nobody locks anything that is shared, so
// a rank that stops or dies at any point leaves nothing broken behind. Who waits spins a little, then lets other
// processes run, then sleeps at its bell; asleep it looks at the watch (process_world.h) and at its peers' processes.
#include "comm/futex.h"
#include "comm/peer_processes.h"
#include "comm/process_world.h"
#include "comm/pump.h"
#include "comm/shared_mail.h"
#include "placements/error.h"

#include <sched.h>

#include <algorithm>
#include <deque>
#include <optional>

namespace dtensor::detail {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds slice{100};

void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// One rank's end of a group; shared with its works.
struct Connection final : Pumped {
  std::shared_ptr<ProcessWorld> world;
  GroupIdentity group;
  std::shared_ptr<GroupProgress> progress;
  std::atomic<milliseconds> timeout;
  bool crowded = false;  // more ranks than cores: whoever spins keeps a peer from running

  std::mutex mutex;  // of all below; held for steps, never for a wait
  std::unique_ptr<SharedEndpoint> endpoint;  // made by the first collective
  std::unique_ptr<SharedMail> mail;
  std::deque<SharedCollectivePointer> queue;
  std::optional<std::string> broken;  // why nothing works any more
  std::atomic<int> pending{0};        // collectives, sends and receives
  std::atomic<int> waiters{0};

  // ---- Pumped ----
  bool is_pending() const override { return pending.load() > 0; }
  bool has_waiter() const override { return waiters.load() > 0; }
  void pump() noexcept override {
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock.owns_lock() || broken) return;
    try {
      drive();
    } catch (...) {  // kept in `broken`
    }
  }
  void doze(microseconds patience) override {
    Bell& bell = endpoint->bell();
    const auto rings = bell.rings.load();
    bell.sleepers.fetch_add(1);
    pump();
    if (is_pending()) futex_wait(bell.rings, rings, patience);
    bell.sleepers.fetch_sub(1);
  }

  // ---- under the lock ----

  // Steps what is under way. Errors: DesyncError, CommError; the group is then broken.
  void drive() {
    Call call{};
    try {
      endpoint->awaited().clear();
      while (!queue.empty()) {
        auto& front = *queue.front();
        call = front.call;
        if (!front.step(*endpoint)) break;
        front.done.store(true);
        queue.pop_front();
        if (waiters.load() > 1) endpoint->bell().ring();  // another thread of this rank may wait for just this one
      }
      if (mail) mail->step();
    } catch (...) {
      fall_apart(call);
    }
    count();
  }
  void count() { pending.store(static_cast<int>(queue.size()) + (mail ? mail->pending() : 0)); }

  // In a handler of an error that a step threw.
  [[noreturn]] void fall_apart(const Call& call) {
    try {
      throw;
    } catch (const DesyncError& error) {
      const std::string text = describe(group, call) + ": " + error.what_without_backtrace();
      give_up(text);
      throw DesyncError(text);
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const c10::Error*>(&error);
      const std::string text = describe(group, call) + ": " + (known ? known->what_without_backtrace() : error.what());
      give_up(text);
      throw CommError(text);
    }
  }
  void give_up(const std::string& text) {
    broken = text;
    queue.clear();
    pending.store(0);
    world->post_abort(text);
  }
  void check(const Call& call) {
    if (broken) throw CommError(describe(group, call) + ": the group failed before: " + *broken);
  }

  // ---- without the lock ----

  [[noreturn]] void fail(const Call& call, const std::string& symptom) {
    try {
      world->fail(group, *progress, call, symptom);
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      broken = error.what_without_backtrace();
      pending.store(0);
      throw;
    }
  }

  bool advance(const SharedOperation& operation) {
    if (operation.done.load()) return true;
    const std::lock_guard lock(mutex);
    if (operation.done.load()) return true;
    check(operation.call);
    drive();
    return operation.done.load();
  }

  // The peers without which the operation cannot go on, as of the last step.
  std::vector<int> awaited(const Call& call) {
    if (call.peer >= 0) return {call.peer};
    const std::lock_guard lock(mutex);
    return endpoint ? endpoint->awaited() : std::vector<int>();
  }

  void wait(const SharedOperation& operation) {
    ++waiters;
    try {
      wait_counted(operation);
    } catch (...) {
      --waiters;
      throw;
    }
    --waiters;
    if (operation.desync) throw DesyncError(describe(group, operation.call) + ": " + *operation.desync);
  }

  void wait_counted(const SharedOperation& operation) {
    // Spinning pays while the peers run on other cores; yielding while they wait for this one.
    const int spins = crowded ? 4 : 200;
    for (int i = 0; i < spins; ++i) {
      if (advance(operation)) return;
      for (int pauses = 0; pauses < 8; ++pauses) pause_processor();
    }
    for (int i = 0; i < 16; ++i) {
      if (advance(operation)) return;
      ::sched_yield();
    }
    const auto limit = timeout.load();
    const auto begin = Clock::now();
    auto last_look = begin;
    Bell& bell = endpoint->bell();
    while (true) {
      const bool others_pending = world->pump().pump_others(this);
      const auto rings = bell.rings.load();
      bell.sleepers.fetch_add(1);
      bool done = false;
      try {
        done = advance(operation);
        if (!done) futex_wait(bell.rings, rings, others_pending ? milliseconds(1) : slice);
      } catch (...) {
        bell.sleepers.fetch_sub(1);
        throw;
      }
      bell.sleepers.fetch_sub(1);
      if (done || advance(operation)) return;
      if (world->reason_to_stop(group, *progress, operation.call)) fail(operation.call, "");
      const auto now = Clock::now();
      if (now - last_look >= slice) {
        last_look = now;
        look_for_the_dead(operation);
        if (operation.done.load()) return;
      }
      if (now - begin > limit) fail(operation.call, "timed out after " + std::to_string(limit.count()) + " ms");
    }
  }

  void look_for_the_dead(const SharedOperation& operation) {
    for (const int peer : awaited(operation.call)) {
      const auto rank = group.ranks[static_cast<std::size_t>(peer)];
      if (!world->peers().has_ended(rank)) continue;
      // What it did before it ended counts.
      if (advance(operation)) return;
      const auto still = awaited(operation.call);
      if (std::find(still.begin(), still.end(), peer) == still.end()) continue;
      fail(operation.call, "the process of rank " + std::to_string(rank) + " has ended");
    }
  }

  // Before each use.
  void use(const Call& call) {
    if (call.peer < 0) progress->issued.store(call.sequence + 1);
    {
      const std::lock_guard lock(mutex);
      check(call);
    }
    if (!endpoint) connect(call);
    if (world->reason_to_stop(group, *progress, call)) fail(call, "");
  }

  void connect(const Call& call) {
    std::unique_ptr<Segment> segment;
    try {
      if (group.rank == 0) segment = Segment::create(group.size());
      const auto words = world->meet(group, *progress, call, timeout, segment ? segment->address() : "member");
      if (!segment) segment = Segment::open(words[0], group.size());
      segment->attach();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      fail(call, std::string("no shared memory among these ranks (") + error.what() +
                     "); the backend 'gloo' does without");
    }
    for (const auto rank : group.ranks) world->peers().watch(rank);
    // The first rank holds the memory's address until all have it.
    const auto deadline = Clock::now() + timeout.load();
    while (segment->attached() < group.size() && group.rank == 0) {
      if (world->reason_to_stop(group, *progress, call)) fail(call, "the group could not be made");
      if (Clock::now() > deadline) {
        fail(call, "timed out after " + std::to_string(timeout.load().count()) + " ms (first use of the group)");
      }
      std::this_thread::sleep_for(milliseconds(1));
      for (const auto rank : group.ranks) {
        if (world->peers().has_ended(rank) && segment->attached() < group.size()) {
          fail(call, "the process of rank " + std::to_string(rank) + " has ended");
        }
      }
    }
    segment->close_address();
    auto made = std::make_unique<SharedEndpoint>(std::move(segment), group.rank);
    const std::lock_guard lock(mutex);
    endpoint = std::move(made);
    mail = std::make_unique<SharedMail>(endpoint->segment(), group.rank);
  }
};

class SharedWork final : public BackendWork {
 public:
  SharedWork(std::shared_ptr<Connection> connection, SharedOperationPointer operation)
      : connection_(std::move(connection)), operation_(std::move(operation)) {}

  void wait() override { connection_->wait(*operation_); }
  bool is_done() override {
    try {
      return connection_->advance(*operation_);
    } catch (const CommError&) {
      return true;  // wait() throws
    }
  }

 private:
  std::shared_ptr<Connection> connection_;
  SharedOperationPointer operation_;
};

class SharedMemoryBackend final : public Backend {
 public:
  SharedMemoryBackend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group)
      : connection_(std::make_shared<Connection>()), rank_(group.rank), size_(group.size()) {
    static const int cores = usable_cores();
    connection_->group = group;
    connection_->progress = world->add_progress(group);
    connection_->timeout = world->timeout();
    connection_->crowded = world->identity().world_size > cores;
    world->pump().add(connection_);
    connection_->world = std::move(world);
  }

  const char* name() const override { return "shared_memory"; }
  void set_timeout(milliseconds timeout) override { connection_->timeout = timeout; }
  milliseconds timeout() const override { return connection_->timeout; }

  BackendWorkPointer all_reduce(const Call& call, at::Tensor& tensor, ReduceOp op) override {
    return issue(call, [&] { return shared_all_reduce(call, tensor, op, size_); });
  }
  BackendWorkPointer all_gather(const Call& call, std::vector<at::Tensor>& outputs,
                                const at::Tensor& input) override {
    return issue(call, [&] { return shared_all_gather(call, outputs, input, rank_); });
  }
  BackendWorkPointer reduce_scatter(const Call& call, at::Tensor& output,
                                    const std::vector<at::Tensor>& inputs, ReduceOp op) override {
    return issue(call, [&] { return shared_reduce_scatter(call, output, inputs, op); });
  }
  BackendWorkPointer all_to_all(const Call& call, std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& inputs) override {
    return issue(call, [&] { return shared_all_to_all(call, outputs, inputs, rank_); });
  }
  BackendWorkPointer broadcast(const Call& call, at::Tensor& tensor, int source) override {
    return issue(call, [&] { return shared_broadcast(call, tensor, source, rank_, size_); });
  }
  BackendWorkPointer scatter(const Call& call, at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             int source) override {
    return issue(call, [&] { return shared_scatter(call, output, inputs, source, rank_, size_); });
  }
  void barrier(const Call& call) override {
    if (const auto work = issue(call, [&] { return shared_barrier(call, rank_, size_); })) work->wait();
  }
  BackendWorkPointer send(const Call& call, const at::Tensor& tensor, int destination, int tag) override {
    return post(call, [&](SharedMail& mail) { return mail.send(call, tensor, destination, tag); });
  }
  BackendWorkPointer recv(const Call& call, at::Tensor& tensor, int source, int tag) override {
    return post(call, [&](SharedMail& mail) { return mail.recv(call, tensor, source, tag); });
  }

 private:
  template <typename Make>
  BackendWorkPointer issue(const Call& call, const Make& make) {
    auto& connection = *connection_;
    connection.use(call);
    SharedCollectivePointer operation;
    {
      const std::lock_guard lock(connection.mutex);
      connection.check(call);
      try {
        operation = make();
      } catch (...) {
        connection.fall_apart(call);
      }
      connection.queue.push_back(operation);
      connection.drive();
    }
    return work(std::move(operation));
  }
  template <typename Post>
  BackendWorkPointer post(const Call& call, const Post& post_in) {
    auto& connection = *connection_;
    connection.use(call);
    SharedOperationPointer operation;
    {
      const std::lock_guard lock(connection.mutex);
      connection.check(call);
      operation = post_in(*connection.mail);
      connection.count();
    }
    return work(std::move(operation));
  }
  BackendWorkPointer work(SharedOperationPointer operation) {
    if (operation->done.load() && !operation->desync) return nullptr;
    connection_->world->pump().notice();
    return std::make_unique<SharedWork>(connection_, std::move(operation));
  }

  std::shared_ptr<Connection> connection_;
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Backend> make_shared_memory_backend(std::shared_ptr<ProcessWorld> world, const GroupIdentity& group) {
  return std::make_unique<SharedMemoryBackend>(std::move(world), group);
}

}  // namespace dtensor::detail
