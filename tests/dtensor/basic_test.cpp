// The first things a user does: distribute, compute, read, differentiate.
#include <dtensor/all.h>
#include <catch2/catch_test_macros.hpp>

#include <torch/torch.h>

using namespace dtensor;

namespace {
DeviceMesh mesh_of(int ranks) { return init_device_mesh(torch::kCPU, {ranks}, {"tp"}); }
}  // namespace

TEST_CASE("distribute_tensor and full_tensor give the same values on every rank") {
  run_ranks(2, [](int) {
    const auto mesh = mesh_of(2);
    const auto full = torch::arange(15, torch::kFloat).view({5, 3});
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      const auto tensor = distribute_tensor(full, mesh, {placement});
      REQUIRE(tensor.sizes() == full.sizes());
      REQUIRE(torch::equal(tensor.full_tensor(), full));
    }
  });
}

TEST_CASE("add, matmul, sum and their gradients equal the plain ones") {
  run_ranks(2, [](int) {
    const auto mesh = mesh_of(2);
    const auto a = torch::arange(12, torch::kDouble).view({4, 3}) / 7;
    const auto b = torch::arange(15, torch::kDouble).view({3, 5}) / 11;
    for (const auto& pa : {Shard(0), Shard(1), Replicate()})
      for (const auto& pb : {Shard(0), Shard(1), Replicate()}) {
        auto x = distribute_tensor(a, mesh, {pa}), y = distribute_tensor(b, mesh, {pb});
        x.set_requires_grad(true);
        y.set_requires_grad(true);
        const auto loss = (torch::matmul(x, y) + 1).pow(2).sum();
        loss.backward();
        auto p = a.clone().set_requires_grad(true), q = b.clone().set_requires_grad(true);
        const auto expected = (torch::matmul(p, q) + 1).pow(2).sum();
        expected.backward();
        REQUIRE(torch::allclose(as_dtensor(loss).full_tensor(), expected));
        REQUIRE(torch::allclose(as_dtensor(x.grad()).full_tensor(), p.grad()));
        REQUIRE(torch::allclose(as_dtensor(y.grad()).full_tensor(), q.grad()));
      }
  });
}
