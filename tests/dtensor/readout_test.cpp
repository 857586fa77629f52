// Values read on the host (trap 11) and reductions over empty parts (trap 13).
#include <support/check.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("trap 11: item, equal, is_nonzero and allclose read the global value on every rank") {
  for (int ranks : {2, 3})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      for (const auto& placement : {Shard(0), Replicate(), Partial()}) {
        const auto x = place(counting({5}), mesh, {placement});
        check(x.sum().item<double>() == 10, "item of a pending sum");
        check(place(counting({1}) + 7, mesh, {placement}).item<double>() == 7,
              "item of one element, wherever it lies");
        check(at::equal(x, place(counting({5}), mesh, {Replicate()})), "equal");
        check(!at::equal(x, x + 1), "not equal");
        check(at::allclose(x, x + 1e-12) && !at::allclose(x, x + 1), "allclose");
        check((x.sum() > 9).item<bool>() && at::is_nonzero(x.sum()), "bool, is_nonzero");
        check(static_cast<bool>(at::any(x > 3).item<bool>()) && !at::all(x > 3).item<bool>(), "any, all");
        error_of<c10::Error>([&] { x.item<double>(); }, "item of five elements, as on one device");
      }
      const auto uneven =
          place(counting({5}) + at::tensor({0., 0., 0., 0., 1.}, at::kDouble), mesh, {Shard(0)});
      check(!at::equal(uneven, place(counting({5}), mesh, {Shard(0)})),
            "a difference on one rank alone is seen by all");
    });
}

TEST_CASE("trap 11: K58, scalar read-out of a sharded value") {
  run_ranks(2, [](int) {
    const auto x = ones({8, 8}, line(2), {Shard(0)});
    check(x.norm().item<float>() == 8 && x.sum().item<float>() == 64, "norm, sum");
    check(x.max().item<float>() == 1 && x.mean().item<float>() == 1, "max, mean");
    check(at::any(x > 0).item<bool>(), "any");
    error_of<c10::Error>([&] { ones({2}, line(2), {Shard(0)}).item<float>(); }, "item of two elements");
  });
}

TEST_CASE("trap 11: reading memory is refused") {
  run_ranks(2, [](int) {
    const auto x = place(counting({4}), line(2), {Shard(0)});
    error_of<c10::Error>([&] { static_cast<void>(x.data_ptr()); }, "data_ptr");
    error_of<c10::Error>([&] { static_cast<void>(x.data_ptr<double>()); }, "data_ptr<double>");
    error_of<c10::Error>([&] { static_cast<void>(x.const_data_ptr()); }, "const_data_ptr");
    check_contains(error_of<c10::Error>([&] { static_cast<void>(x.storage()); }, "storage"), "to_local");
    error_of<c10::Error>([&] { static_cast<void>(x.accessor<double, 1>()); }, "accessor");
  });
}

TEST_CASE("trap 13: reductions over empty parts") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{1, 4}, {2, 3}, {4, 1}})
      for (const auto& placement : {Shard(0), Shard(1)}) {
        const auto full = values(sizes);
        const auto x = place(full, mesh, {placement});
        const auto text = fmt::format("[{}] {}", fmt::join(sizes, ", "), placement.to_string());
        check_close(x.sum(), full.sum(), text + " sum");
        check_close(x.sum(0), full.sum(0), text + " sum(0)");
        check_close(x.mean(), full.mean(), text + " mean");
        check_close(x.prod(), full.prod(), text + " prod");
        check_close(x.max(), full.max(), text + " max");
        check_close(x.min(), full.min(), text + " min");
        check_close(x.amax({0}), full.amax({0}), text + " amax");
        check_close(std::get<0>(x.max(0)), std::get<0>(full.max(0)), text + " max(0)");
        check_close(std::get<1>(x.max(0)), std::get<1>(full.max(0)), text + " max(0) index");
        check_close(x.argmax(), full.argmax(), text + " argmax");
        check_close(x.argmin(1), full.argmin(1), text + " argmin(1)");
        check_close(x.var(), full.var(), text + " var");
        check_close(x.norm(), full.norm(), text + " norm");
        check_close((x > 0).any(), (full > 0).any(), text + " any");
        check_close((x < 9).all(), (full < 9).all(), text + " all");
        check_close(x.logsumexp(0), full.logsumexp(0), text + " logsumexp");
        check_close(x.softmax(0), full.softmax(0), text + " softmax");
        check_close(x.cumsum(0), full.cumsum(0), text + " cumsum");
      }
  });
}

TEST_CASE("trap 13: a tensor without elements fails alike on all ranks, or reduces to the identity") {
  run_ranks(2, [](int) {
    const auto x = place(at::zeros({0, 3}, at::kDouble), line(2), {Shard(0)});
    check_close(x.sum(), at::scalar_tensor(0.0, at::kDouble), "sum");
    check_close(x.sum(0), at::zeros({3}, at::kDouble), "sum(0)");
    error_of<c10::Error>([&] { x.argmax(); }, "argmax");
    error_of<c10::Error>([&] { x.max(); }, "max");
  });
}
