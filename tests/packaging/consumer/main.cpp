#include <ATen/ATen.h>
#include <dtensor/all.h>

#include <cstdio>

// Shards a tensor over two ranks (threads), adds it to itself, and gathers the result.
int main() {
  bool right = false;
  dtensor::run_ranks(2, [&](int rank) {
    auto mesh = dtensor::init_device_mesh(c10::DeviceType::CPU, {2}, {"tp"});
    at::Tensor whole = at::arange(6).reshape({3, 2});
    dtensor::DTensor sharded = dtensor::distribute_tensor(whole, mesh, {dtensor::Shard(0)});
    at::Tensor gathered = dtensor::DTensor(sharded + sharded).full_tensor();
    if (rank == 0) right = at::equal(gathered, whole * 2);
  });
  std::printf("%s\n", right ? "right" : "wrong");
  return right ? 0 : 1;
}
