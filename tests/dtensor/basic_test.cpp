// The first things a user does: distribute, compute, read, differentiate.
#include <catch2/catch_test_macros.hpp>
#include <support/check.h>
#include <torch/types.h>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("distribute_tensor and full_tensor give the same values on every rank") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = torch::arange(15, torch::kFloat).view({5, 3});
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      const auto tensor = distribute_tensor(full, mesh, {placement});
      check(tensor.sizes() == full.sizes(), "global sizes");
      check(torch::equal(tensor.full_tensor(), full), "values");
    }
  });
}

TEST_CASE("add, matmul, sum and their gradients equal the plain ones") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
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
        check_close(loss, expected, "loss");
        check_close(x.grad(), p.grad(), "x.grad()");
        check_close(y.grad(), q.grad(), "y.grad()");
      }
  });
}
