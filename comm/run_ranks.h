// Ranks as threads of one process: what most tests and small experiments use.
#pragma once

#include <chrono>
#include <functional>

namespace dtensor {

struct RunRanksOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of each collective
};

// Runs `function(rank)` on `world_size` threads, each with a World of its own over the `threads` backend.
// Returns when all have ended. The first failure is rethrown (with its rank in the text when it is an Error
// of this library); ranks that wait for the failed one throw CommError, so nobody hangs. Each rank thread
// uses one intra-op thread, view replay, and single-threaded autograd.
void run_ranks(int world_size, const std::function<void(int rank)>& function, RunRanksOptions options = {});

}  // namespace dtensor
