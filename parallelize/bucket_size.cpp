#include "parallelize/bucket_size.h"

#include "comm/counters.h"
#include "comm/group.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace dtensor::detail {

namespace {

constexpr double megabyte = 1024 * 1024;
constexpr double wanted_ratio = 10;  // of the time for the bytes to the latency
constexpr int repetitions = 5;

// Seconds of the fastest of a few all-reduces.
double time_all_reduce(Group& group, std::int64_t bytes, at::Device device) {
  auto buffer = at::zeros({bytes / 4}, at::TensorOptions(at::kFloat).device(device));
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    group.all_reduce(buffer).synchronize();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (i > 0) fastest = std::min(fastest, passed.count());  // the first one connects
  }
  return fastest;
}

}  // namespace

double measured_bucket_mb(const DeviceMesh& mesh, int mesh_dim) {
  const CollectiveReason reason("measurement");
  Group& group = mesh.group(mesh_dim);
  const at::Device device = mesh.device();
  const double latency = time_all_reduce(group, 4, device);
  const double per_megabyte = std::max(time_all_reduce(group, 8 * static_cast<std::int64_t>(megabyte), device) - latency, 1e-9) / 8;
  auto size = at::full({1}, std::clamp(wanted_ratio * latency / per_megabyte, 1.0, 100.0), at::TensorOptions(at::kDouble).device(device));
  mesh.whole_group().broadcast(size).wait();
  return size.item<double>();
}

}  // namespace dtensor::detail
