// Packed dimensions: taking the parts of an interleaved cut apart, and joining them again, moves nothing.
#include <support/check.h>
#include <torch/csrc/autograd/autograd.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("pieces at the borders of parts stay cut, without communication") {
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](int) {
      const auto mesh = line(ranks);
      const auto full = values({3, 13});
      const auto x = place(full, mesh, {Interleaved(1, {7, 4, 2})});
      const CollectiveCounter counter;
      const auto one_by_one = x.split_with_sizes({7, 4, 2}, 1);
      const auto first_and_rest = x.split_with_sizes({7, 6}, -1);
      const auto all = x.split(13, 1);
      const auto copies = at::split_with_sizes_copy(x, {7, 4, 2}, 1);
      check(counter.total() == 0, counter.to_string());
      for (const auto& piece : one_by_one) check_placed(piece, {Shard(1)}, "a part");
      check_placed(first_and_rest[1], {Interleaved(1, {4, 2})}, "two parts");
      check_placed(all[0], {Interleaved(1, {7, 4, 2})}, "all parts");
      const auto expected = full.split_with_sizes({7, 4, 2}, 1);
      for (std::size_t i = 0; i < 3; ++i) {
        check_close(one_by_one[i], expected[i], "a part");
        check_close(copies[i], expected[i], "a copy");
        check(one_by_one[i].strides() == expected[i].strides(), "strides of a view");
      }
      check_close(first_and_rest[1], full.slice(1, 7), "two parts");
      check_close(all[0], full, "all parts");
      // Borders elsewhere: right, by moving.
      const auto elsewhere = x.split_with_sizes({6, 7}, 1);
      check_close(elsewhere[0], full.slice(1, 0, 6), "another border");
      check_close(elsewhere[1], full.slice(1, 6), "another border");
    });
}

TEST_CASE("a chunk of two halves writes through to the packed tensor") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = values({6, 2});
    const auto x = place(full, mesh, {Interleaved(0, {3, 3})});
    auto halves = x.chunk(2, 0);
    halves[1].zero_();
    auto expected = full.clone();
    expected.slice(0, 3).zero_();
    check_close(x, expected, "the base");
  });
}

TEST_CASE("what is cut in the joined dimension is joined part by part") {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](int) {
      const auto mesh = line(ranks);
      const auto a = values({2, 5}), b = values({2, 3}, 1), c = values({2, 8}, 2);
      const auto x = place(a, mesh, {Shard(1)}), y = place(b, mesh, {Shard(1)}),
                 z = place(c, mesh, {Interleaved(1, {4, 4})});
      const CollectiveCounter counter;
      const auto joined = at::cat({x, z, y}, 1);
      check(counter.total() == 0, counter.to_string());
      check_placed(joined, {Interleaved(1, {5, 4, 4, 3})}, "joined");
      check_close(joined, at::cat({a, c, b}, 1), "joined");
      check_close(at::cat({x, place(b, mesh, {Replicate()})}, 1), at::cat({a, b}, 1), "with a whole one");
      check_close(at::cat({x, place(values({1, 5}), mesh, {Shard(1)})}, 0), at::cat({a, values({1, 5})}, 0), "another dimension");
      // A tensor that grows by joining does not collect parts for ever.
      at::Tensor growing = x, expected = a;
      for (int i = 0; i < 12; ++i) {
        growing = at::cat({growing, y}, 1);
        expected = at::cat({expected, b}, 1);
      }
      check_close(growing, expected, "grown");
    });
}

TEST_CASE("gradients of packed parts, first and second") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    const auto full = values({2, 12});
    const auto run = [](const at::Tensor& x) {
      const auto parts = x.split_with_sizes({6, 3, 3}, 1);
      const auto y = (parts[0].sin().sum() + (parts[1] * parts[2]).pow(2).sum());
      const auto gradient = torch::autograd::grad({y}, {x}, {}, true, true)[0];
      return std::pair{gradient, torch::autograd::grad({gradient.pow(2).sum()}, {x})[0]};
    };
    const auto [first, second] = run(leaf(full, mesh, {Interleaved(1, {6, 3, 3})}));
    const auto [wanted_first, wanted_second] = run(full.clone().set_requires_grad(true));
    check_placed(first, {Interleaved(1, {6, 3, 3})}, "gradient");
    check_close(first, wanted_first.detach(), "first", 1e-12);
    check_close(second, wanted_second.detach(), "second", 1e-12);
  });
}
