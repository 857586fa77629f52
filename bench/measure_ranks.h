// For benchmarks with several ranks: the time of what all ranks do together.
#pragma once

#include "measure.h"

#include "comm/group.h"

#include <ATen/ops/full.h>

namespace bench {

// Microseconds per call, from when all ranks begin until all are through. `meet` is the cheapest barrier there is.
inline double time_together(const std::function<void()>& run, int count, const std::function<void()>& meet) {
  meet();
  const double nanoseconds = time_calls([&] {
    for (int i = 0; i < count; ++i) run();
    meet();
  }, 1);
  return nanoseconds / 1e3 / count;
}

// As many calls as take about `seconds`, after calls that warm the caches; the same number on all ranks.
inline int choose_count_together(dtensor::Group& group, const std::function<void()>& run, double seconds) {
  const auto meet = [&] { group.barrier(); };
  time_together(run, 3, meet);
  auto count = at::full({1}, std::clamp(seconds * 1e6 / time_together(run, 3, meet), 3.0, 2000.0));
  group.broadcast(count, 0).wait();
  return static_cast<int>(*count.const_data_ptr<float>());
}

}  // namespace bench
