// init() and shutdown(): the World of this process.
#include "comm/environment.h"
#include "comm/process_world.h"
#include "comm/world.h"
#include "placements/error.h"

#include <cstdlib>
#include <exception>
#include <mutex>

namespace dtensor {

namespace detail {
void set_process_world(World* world);  // world.cpp
}

namespace {

std::mutex mutex;
World* process_world = nullptr;  // deleted by shutdown() alone, never by the end of the program
std::terminate_handler former_terminate_handler = nullptr;

// A program that dies of an uncaught exception tells its peers why.
[[noreturn]] void note_and_terminate() {
  if (World* world = process_world) {
    std::string text = "the program was terminated";
    if (const auto error = std::current_exception()) {
      try {
        std::rethrow_exception(error);
      } catch (const c10::Error& caught) {
        text = std::string("uncaught exception: ") + caught.what_without_backtrace();
      } catch (const std::exception& caught) {
        text = std::string("uncaught exception: ") + caught.what();
      } catch (...) {
        text = "uncaught exception of unknown type";
      }
    }
    world->abort(text);
  }
  if (former_terminate_handler) former_terminate_handler();
  std::abort();
}

void install_handlers_once() {
  static const bool installed = [] {
    former_terminate_handler = std::set_terminate(note_and_terminate);
    std::atexit(shutdown);  // a program that forgets shutdown() still leaves in order
    return true;
  }();
  static_cast<void>(installed);
}

detail::RankIdentity identity_from(const InitOptions& options) {
  if (!options.rank && !options.world_size) {
    if (options.local_rank) throw MeshError("init: local_rank is set, but rank and world_size are not");
    auto found = detail::find_rank(detail::process_variables());
    if (found) return *std::move(found);
    detail::RankIdentity alone;
    alone.source = "single";
    return alone;
  }
  if (!options.rank || !options.world_size) {
    throw MeshError(std::string("init: ") + (options.rank ? "world_size" : "rank") +
                    " is not set in the options; set rank and world_size, or neither");
  }
  detail::RankIdentity identity;
  identity.source = "options";
  identity.rank = *options.rank;
  identity.world_size = *options.world_size;
  identity.local_rank = options.local_rank.value_or(identity.rank);
  identity.master_address = options.master_address;
  identity.master_port = options.master_port;
  if (identity.world_size < 1 || identity.rank < 0 || identity.rank >= identity.world_size) {
    throw MeshError("init: rank " + std::to_string(identity.rank) + " is not in a world of " +
                    std::to_string(identity.world_size));
  }
  const bool has_port = identity.master_port > 0 && identity.master_port < 65536;
  if (identity.world_size > 1 && (identity.master_address.empty() || !has_port)) {
    throw MeshError("init: a world of " + std::to_string(identity.world_size) +
                    " ranks needs master_address and master_port (1 to 65535) in the options");
  }
  return identity;
}

}  // namespace

World& init(InitOptions options) {
  // Under run_ranks the thread has a World; a program written for processes then runs on it as it is.
  if (World* world = World::current_or_null()) return *world;
  const std::lock_guard lock(mutex);
  if (process_world) return *process_world;
  const auto& backend = options.backend;
  if (backend != "auto" && backend != "shared_memory" && backend != "gloo" && backend != "nccl") {
    throw MeshError("init: unknown backend '" + backend + "'; there are auto, shared_memory, gloo, nccl");
  }
  const auto identity = identity_from(options);
  std::shared_ptr<detail::WorldState> state;
  if (identity.world_size == 1) {
    state = detail::make_single_world_state(options.timeout);
  } else {
    state =
        detail::ProcessWorld::start({identity, options.backend, options.startup_timeout, options.timeout});
    install_handlers_once();
  }
  process_world =
      new World(identity.rank, identity.world_size, identity.local_rank, identity.source, std::move(state));
  detail::set_process_world(process_world);
  return *process_world;
}

void shutdown() {
  const std::lock_guard lock(mutex);
  World* current = World::current_or_null();
  if (!process_world || (current && current != process_world))
    return;  // a rank thread's World ends with run_ranks
  detail::set_process_world(nullptr);
  World* ended = process_world;
  process_world = nullptr;
  delete ended;
}

}  // namespace dtensor
