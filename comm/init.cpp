#include "comm/world.h"
#include "comm/world_state.h"

#include <mutex>

namespace dtensor {

namespace detail {
void set_process_world(World* world);
}

namespace {
std::mutex mutex;
std::unique_ptr<World> process_world;
}  // namespace

World& init(InitOptions options) {
  const std::lock_guard lock(mutex);
  if (!process_world) {
    process_world =
        std::make_unique<World>(0, 1, 0, "single", detail::make_single_world_state(options.timeout));
    detail::set_process_world(process_world.get());
  }
  return *process_world;
}

void shutdown() {
  const std::lock_guard lock(mutex);
  detail::set_process_world(nullptr);
  process_world.reset();
}

}  // namespace dtensor
