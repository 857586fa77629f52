// The `threads` backend: ranks as threads of one process, used by run_ranks. Private to comm/.
#pragma once

#include "comm/world_state.h"

namespace dtensor::detail {

class ThreadHub;  // what the ranks of one run_ranks share

std::shared_ptr<ThreadHub> make_thread_hub(int world_size, std::chrono::milliseconds timeout);
std::unique_ptr<WorldState> make_thread_world_state(std::shared_ptr<ThreadHub> hub, int rank);
// The rank's function has returned: ranks that wait for it throw CommError.
void rank_has_ended(ThreadHub& hub, int rank);

}  // namespace dtensor::detail
