#include "comm/run_ranks.h"

#include "comm/threads.h"
#include "comm/world.h"
#include "placements/error.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dtensor {

namespace {

enum class FailureKind { communication, own };

// The failure to rethrow: the first one, unless it is only about waiting for peers and another rank failed by
// itself.
class Failures {
 public:
  void add(FailureKind kind, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ && !(kind_ == FailureKind::communication && kind == FailureKind::own)) return;
    kind_ = kind;
    error_ = std::move(error);
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  FailureKind kind_ = FailureKind::own;
  std::exception_ptr error_;
};

// See trap 20 of the design: all of these are per thread, so they end with it.
void set_up_rank_thread() {
  at::set_num_threads(1);
  auto& autograd = c10::AutogradState::get_tls_state();
  autograd.set_multithreading_enabled(false);
  autograd.set_view_replay_enabled(true);
}

void run_rank(int rank, int world_size, const std::function<void(int)>& function,
              const std::shared_ptr<detail::ThreadHub>& hub, Failures& failures) {
  set_up_rank_thread();
  World world(rank, world_size, rank, "threads", detail::make_thread_world_state(hub, rank));
  World::exchange_current(&world);
  const std::string context =
      "on rank " + std::to_string(rank) + " of run_ranks(" + std::to_string(world_size) + ")";
  // Order matters: the failure is noted before the peers learn of it, so theirs come later.
  try {
    function(rank);
  } catch (DesyncError& error) {
    error.add_context(context);
    failures.add(FailureKind::own, std::current_exception());
    world.abort(error.what_without_backtrace());
  } catch (CommError& error) {
    error.add_context(context);
    failures.add(FailureKind::communication, std::current_exception());
    world.abort(error.what_without_backtrace());
  } catch (c10::Error& error) {
    error.add_context(context);
    failures.add(FailureKind::own, std::current_exception());
    world.abort(error.what_without_backtrace());
  } catch (const std::exception& error) {
    failures.add(FailureKind::own, std::current_exception());
    world.abort(error.what());
  } catch (...) {
    failures.add(FailureKind::own, std::current_exception());
    world.abort("an exception of unknown type");
  }
  detail::rank_has_ended(*hub, rank);
  World::exchange_current(nullptr);
}

}  // namespace

void run_ranks(int world_size, const std::function<void(int rank)>& function, RunRanksOptions options) {
  if (world_size < 1) {
    throw MeshError("run_ranks: a world has 1 rank or more, not " + std::to_string(world_size));
  }
  const auto hub = detail::make_thread_hub(world_size, options.timeout);
  Failures failures;
  // at::set_num_threads sets the calling thread and the default of threads to come; the default is put back.
  const int threads_before = at::get_num_threads();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] { run_rank(rank, world_size, function, hub, failures); });
  }
  for (auto& thread : threads) thread.join();
  at::set_num_threads(threads_before);
  failures.rethrow();
}

}  // namespace dtensor
