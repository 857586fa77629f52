// local_region: a custom kernel on local tensors, gradients stated.
#include <support/check.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("local_region brings inputs to their placements, wraps results, and gradients flow") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto fx = values({4, 6}), fw = values({6, 3}, 1);
    for (const auto& px : {Shard(0), Shard(1), Replicate()}) {
      auto x = leaf(fx, mesh, {px}), w = leaf(fw, mesh, {Replicate()});
      const auto kernel = [](const std::vector<at::Tensor>& in) {
        check(!is_dtensor(in[0]) && in[0].size(0) == 2, "local tensors");
        return std::vector<at::Tensor>{in[0].mm(in[1]).tanh(), in[0] * 2};
      };
      const auto y = local_region(kernel, {x, w}, {{Shard(0)}, {Replicate()}}, {{Shard(0)}, {Shard(0)}});
      check_placed(y[0], {Shard(0)}, "first result");
      check_close(y[0], fx.mm(fw).tanh(), "first result");
      check_close(y[1], fx * 2, "second result");
      (y[0].sum() + y[1].pow(2).sum()).backward();
      auto p = fx.clone().set_requires_grad(true), q = fw.clone().set_requires_grad(true);
      (p.mm(q).tanh().sum() + (p * 2).pow(2).sum()).backward();
      check_close(x.grad(), p.grad(), "x");
      check_close(w.grad(), q.grad(), "a whole input beside cut ones: a pending sum");
    }
  });
}

TEST_CASE("local_region with a pending result, and with gradient placements stated") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto fx = values({4, 6}), fw = values({6, 3}, 1);
    auto x = leaf(fx, mesh, {Shard(1)}), w = leaf(fw, mesh, {Shard(0)}),
         s = leaf(values({3}, 2), mesh, {Replicate()});
    const auto y = local_region(
        [](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{in[0].mm(in[1])}; }, {x, w},
        {{Shard(1)}, {Shard(0)}}, {{Partial()}})[0];
    check_close(y, fx.mm(fw), "pending");
    const auto z =
        local_region([](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{in[0] * in[1]}; },
                     {y, s}, {{Replicate()}, {Replicate()}}, {{Replicate()}},
                     {std::vector<Placements>{{Replicate()}, {Replicate()}}})[0];
    z.pow(2).sum().backward();
    auto p = fx.clone().set_requires_grad(true), q = fw.clone().set_requires_grad(true),
         r = values({3}, 2).set_requires_grad(true);
    (p.mm(q) * r).pow(2).sum().backward();
    check_close(x.grad(), p.grad(), "x");
    check_close(w.grad(), q.grad(), "w");
    check_close(s.grad(), r.grad(), "s, stated as the same on every rank");
  });
}

TEST_CASE("local_region refuses counts that do not agree") {
  run_ranks(2, [](int) {
    const auto x = place(values({4, 6}), line(2), {Shard(0)});
    const auto same = [](const std::vector<at::Tensor>& in) { return in; };
    refusal_of<PlacementError>([&] { local_region(same, {x}, {}, {{Shard(0)}}); }, "no input placements");
    refusal_of<PlacementError>([&] { local_region(same, {}, {}, {{Shard(0)}}); }, "no inputs");
    refusal_of<PlacementError>([&] { local_region(same, {x}, {{Shard(0)}}, {}); }, "no output placements");
    refusal_of<PlacementError>(
        [&] { local_region(same, {x}, {{Shard(0)}}, {{Shard(0)}}, {std::vector<Placements>{}}); },
        "no gradient placements");
  });
}
