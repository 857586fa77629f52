// Public failures of other systems, restated; each test bears its number. See also the tests of the files they concern.
#include <support/check.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {
at::Tensor number(double value, at::ScalarType dtype = at::kFloat) { return at::scalar_tensor(value, dtype); }
DTensor pending(const at::Tensor& on_rank_0, const at::Tensor& on_rank_1, ReduceOp op = ReduceOp::sum) {
  const auto mesh = line(2);
  return from_local(mesh.coordinate()[0] == 0 ? on_rank_0 : on_rank_1, mesh, {Partial(op)});
}
}  // namespace

TEST_CASE("K01: a host scalar meets a pending sum") {
  run_ranks(2, [](int) {
    const auto s = place(counting({10, 1}, at::kFloat), line(2), {Shard(0)}).sum();
    check_placed(s, {Partial()}, "still pending");
    check_close(s + 10, number(55), "s + 10");
    check_close(s - 10, number(35), "s - 10");
    check_close(10 - s, number(-35), "10 - s");
    check_close(s * 3, number(135), "s * 3");
    check_close(s / 3, number(15), "s / 3");
    check_close(s.pow(2), number(2025), "s ** 2");
    check_close(s.clamp_max(20), number(20), "min(s, 20)");
    check((s > 40).item<bool>(), "s > 40");
    check_close(s + number(10), number(55), "a 0-dim tensor");
  });
}

TEST_CASE("K03: product of two pending values") {
  run_ranks(2, [](int) {
    const auto x = pending(number(1), number(2)), y = pending(number(3), number(4));
    check_close(x * y, number(21), "x * y");
    check_close(x / y, number(3.0 / 7), "x / y");
    check_close(x + y, number(10), "x + y");
    check_close(x * place(number(10), line(2), {Replicate()}), number(30), "x * r");
  });
}

TEST_CASE("K04: max and min of a pending sum") {
  run_ranks(2, [](int) {
    const auto t = pending(at::tensor({1.f, 9.f}), at::tensor({8.f, 1.f}));
    check_close(t.max(), number(10), "max");
    check_close(t.min(), number(9), "min");
    check(t.argmax().item<std::int64_t>() == 1, "argmax");
    check_close(t.prod(), number(90), "prod");
    check_close(t.std(), number(0.70710678), "std");
  });
}

TEST_CASE("K05: mean over an unevenly sharded dimension") {
  run_ranks(2, [](int) {
    const auto x = place(counting({3, 4}, at::kFloat), line(2), {Shard(0)});
    check_close(x.mean(), number(5.5), "mean");
    check_close(x.mean(0), at::tensor({4.f, 5.f, 6.f, 7.f}), "mean(0)");
    check_close(x.var(), number(13), "var");
    check_close(x.std(), number(3.6055513), "std");
    const auto y = place(counting({1, 4}, at::kFloat), line(2), {Shard(0)});
    check_close(y.mean(), number(1.5), "an empty part");
    check_close(y.mean(0), counting({4}, at::kFloat), "an empty part, mean(0)");
  });
}

TEST_CASE("K06: a pending average") {
  run_ranks(2, [](int) {
    const auto t = pending(at::tensor({2.f, 4.f, 6.f}), at::tensor({4.f, 8.f, 12.f}), ReduceOp::avg);
    check_close(t.redistribute({Replicate()}), at::tensor({3.f, 6.f, 9.f}), "to Replicate");
    check_close(t.redistribute({Shard(0)}), at::tensor({3.f, 6.f, 9.f}), "to Shard");
    try {
      const auto i = pending(at::tensor({1, 2}, at::kInt), at::tensor({2, 5}, at::kInt), ReduceOp::avg);
      check_close(i.redistribute({Replicate()}), at::tensor({1, 3}, at::kInt), "integers: truncated");
    } catch (const Error&) {
    }
  });
}

TEST_CASE("K07: one kind of pending value to another") {
  run_ranks(2, [](int) {
    check_close(pending(number(2), number(4)).redistribute({Partial(ReduceOp::avg)}), number(6),
                "sum to avg");
    check_close(pending(number(2), number(4), ReduceOp::max).redistribute({Partial()}), number(4),
                "max to sum");
  });
}

TEST_CASE("K08: argmax and argmin across shards") {
  run_ranks(2, [](int) {
    const auto x = place(at::tensor({10.f, 5.f, 3.f, 8.f}), line(2), {Shard(0)});
    check(x.argmax().item<std::int64_t>() == 0 && x.argmin().item<std::int64_t>() == 2, "argmax, argmin");
    const auto m = place(at::tensor({1.f, 7.f, 9.f, 2.f}).view({2, 2}), line(2), {Shard(1)});
    check_close(m.argmax(1), at::tensor({1, 0}, at::kLong), "along the cut dimension");
    check(m.argmax().item<std::int64_t>() == 2, "of all");
    check(place(at::full({4}, 4), line(2), {Shard(0)}).argmax().item<std::int64_t>() == 0, "ties: the first");
  });
}

TEST_CASE("K16: a view that needs data movement") {
  run_ranks(4, [](int) {
    const auto x = place(counting({12, 8}), line(4), {Shard(1)});
    for (const auto& sizes :
         std::vector<std::vector<std::int64_t>>{{16, 6}, {96}, {2, 6, 8}, {12, 2, 4}, {12, 4, 2}}) {
      try {
        check_close(x.view(sizes), counting({12, 8}).view(sizes),
                    fmt::format("view [{}]", fmt::join(sizes, ", ")));
      } catch (const UnsupportedError&) {
      }
    }
  });
}

TEST_CASE("K17: splitting a dimension that two mesh dimensions cut") {
  run_ranks(6, [](int) {
    const auto x = place(counting({12}), grid(2, 3), {Shard(0), Shard(0)});
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{3, 4}, {6, 2}, {2, 6}}) {
      try {
        check_close(x.reshape(sizes), counting({12}).reshape(sizes),
                    fmt::format("reshape [{}]", fmt::join(sizes, ", ")));
      } catch (const UnsupportedError&) {
      }
    }
  });
}

TEST_CASE("K21: global sizes of unequal parts") {
  run_ranks(4, [](int rank) {
    const auto full = counting({10, 2});
    const auto part = full.narrow(0, 3 * rank, rank == 3 ? 1 : 3);
    for (const auto& options :
         {FromLocalOptions{}, FromLocalOptions{std::vector<std::int64_t>{10, 2}, false}}) {
      const auto x = from_local(part, line(4), {Shard(0)}, options);
      check(x.size(0) == 10, "the same sizes on all ranks");
      check_close(x, full, "values");
    }
  });
}

TEST_CASE("K24: Shard(-1) and Shard(1) are one placement") {
  run_ranks(2, [](int) {
    const auto x = place(values({4, 6}), line(2), {Shard(1)});
    const CollectiveCounter counter;
    check(x.redistribute({Shard(-1)}).is_same(x) && counter.total() == 0, "nothing moves");
  });
}

TEST_CASE("K25: redistribute across meshes") {
  run_ranks(4, [](int) {
    const auto x = place(values({4, 4}), line(4), {Shard(0)});
    error_of<Error>(
        [&] {
          static_cast<void>(x.redistribute({Shard(0), Shard(1)}));
        },
        "placements of another mesh");
    const auto y = place(values({4, 4}), grid(2, 2), {Shard(0), Shard(1)});
    const auto text = refusal_of<MeshError>([&] { x + y; }, "an operator on both");
    check_contains(text, x.mesh().to_string());
    check_contains(text, y.mesh().to_string());
  });
}

TEST_CASE("K30: local data and back on a 2 x 2 mesh") {
  run_ranks(4, [](int rank) {
    const auto mesh = grid(2, 2);
    const auto rows = at::arange(1, 5, at::kDouble).view({4, 1}).expand({4, 4}).contiguous();
    const auto x = place(rows, mesh, {Shard(0), Replicate()});
    auto w = leaf(at::ones({4}, at::kDouble), mesh, {Replicate(), Replicate()});
    error_of<UnsupportedError>([&] { w.to_local(); }, "the gradient's placement must be stated");
    auto mask = at::zeros({4}, at::kDouble);
    mask.narrow(0, 2 * (rank % 2), 2).fill_(1);
    const auto product = x.to_local() * w.to_local({Placements{Partial(), Partial()}}) * mask;
    const auto loss = from_local(product, mesh, {Shard(0), Partial()}).sum() / 4;
    check_close(loss, number(10, at::kDouble), "loss");
    loss.backward();
    check_close(w.grad(), at::full({4}, 2.5, at::kDouble), "gradient");
  });
}

TEST_CASE("K32: backward of pending to shard") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto weights = at::arange(1, 5, at::kDouble);
    for (const auto& target : {Shard(0), Replicate(), Partial()}) {
      auto local = at::full({4}, rank + 1, at::kDouble).set_requires_grad(true);
      const auto y = from_local(local, mesh, {Partial()}).redistribute({target});
      const auto loss = (y * place(weights, mesh, {Replicate()})).sum();
      check_close(loss, number(30, at::kDouble), "loss");
      loss.backward();
      check_close(local.grad(), weights, target.to_string());
    }
  });
}

TEST_CASE("K23: add of operands cut in different dimensions") {
  for (int ranks : {2, 4})
    run_ranks(ranks, [ranks](int) {
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{16, 32}, {5, 3}}) {
        auto a = leaf(values(sizes), line(ranks), {Shard(0)}),
             b = leaf(values(sizes, 1), line(ranks), {Shard(1)});
        const auto c = a + b;
        check_close(c, values(sizes) + values(sizes, 1), "sum");
        c.sum().backward();
        check_close(a.grad(), at::ones(sizes, at::kDouble), "a");
        check_close(b.grad(), at::ones(sizes, at::kDouble), "b");
      }
    });
}

TEST_CASE("K34: complex multiply in backward") {
  run_ranks(2, [](int) {
    const auto factor = at::complex(number(3), number(4)).view({1});
    const auto run = [](const at::Tensor& x, const at::Tensor& f) {
      const auto out = at::view_as_real(at::view_as_complex(x) * f);
      out.sum().backward();
      return out.detach();
    };
    auto x = leaf(at::tensor({1.f, 2.f}).view({1, 1, 2}), line(2), {Replicate()});
    check_close(run(x, place(factor, line(2), {Replicate()})), at::tensor({-5.f, 10.f}).view({1, 1, 2}),
                "value");
    check_close(x.grad(), at::tensor({7.f, -1.f}).view({1, 1, 2}), "gradient");
    for (const auto& placement : {Shard(0), Shard(1)}) {
      auto y = leaf(values({2, 2, 2}, 0, at::kFloat), line(2), {placement});
      auto p = values({2, 2, 2}, 0, at::kFloat).set_requires_grad(true);
      check_close(run(y, place(factor, line(2), {Replicate()})), run(p, factor), "value");
      check_close(y.grad(), p.grad(), "gradient");
    }
  });
}

TEST_CASE("K71: the decision cache does not grow with values in lists") {
  run_ranks(2, [](int) {
    // Counted in policy_test.cpp ("trap 17"); here the slices, which are views and keyed by their bounds, stay right.
    const auto x = place(counting({64, 2}), line(2), {Shard(1)});
    for (int i = 0; i < 50; ++i)
      check_close(x.slice(0, i, i + 4), counting({64, 2}).slice(0, i, i + 4), "slice");
  });
}

TEST_CASE("K74: a wrong layout is no native crash") {
  run_ranks(2, [](int) {
    const auto expected = at::full({4, 8}, 5.0f);
    check_close(ones({4, 5}, line(2), {Replicate()}).mm(ones({5, 8}, line(2), {Shard(0)})), expected,
                "uneven");
    check_close(ones({4, 5}, line(2), {Shard(1)}).mm(ones({5, 8}, line(2), {Shard(1)})), expected,
                "Shard(1) twice");
  });
}

TEST_CASE("K61: a shard has memory of its own, no larger than it") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto check_own = [](const at::Tensor& tensor, const char* text) {
      const auto local = as_dtensor(tensor).to_local();
      check(static_cast<std::int64_t>(local.storage().nbytes()) == local.numel() * local.element_size(), text);
    };
    const auto buffer = values({64, 4}).contiguous();
    const auto full = buffer.narrow(0, 8, 6);
    for (const DistributeOptions& options : {DistributeOptions{}, DistributeOptions{.source = std::nullopt}})
      for (const Placements& placements : {Placements{Shard(0)}, {Shard(1)}, {Replicate()}})
        check_own(distribute_tensor(full, mesh, placements, options), "distributed");
    const auto whole = distribute_tensor(full, mesh, {Replicate()});
    check_own(whole.redistribute({Shard(0)}), "cut");
    check_own(whole.redistribute({Shard(1)}).redistribute({Shard(0)}), "cut anew");
    check_own(at::mm(whole, place(values({4, 6}), mesh, {Shard(1)})), "computed");
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> kept;
    DTensor shard = [&] {
      auto weight = values({64, 4});
      kept = weight.storage().getWeakStorageImpl();
      return distribute_tensor(weight, mesh, {Shard(0)});
    }();
    check(kept->expired(), "the whole weight is freed");
    check_own(shard, "what is left");
  });
}
