// Cross entropy of logits whose classes are cut: values, gradients, counts of collectives.
#include <support/check.h>
#include <torch/csrc/autograd/autograd.h>
#include <catch2/catch_test_macros.hpp>

#include <dtensor/cross_entropy.h>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

constexpr double tolerance = 1e-12;
using Reduction = std::int64_t;
constexpr Reduction none = 0, mean = 1, sum = 2;

struct Example {
  std::vector<std::int64_t> sizes;  // of the logits
  std::int64_t class_dim() const { return sizes.size() == 1 ? 0 : 1; }
  std::int64_t classes() const { return sizes[static_cast<std::size_t>(class_dim())]; }
  std::vector<std::int64_t> rows() const {
    auto rows = sizes;
    rows.erase(rows.begin() + class_dim());
    return rows;
  }
  // Every class is somebody's target, the last ones first; every fourth row is ignored.
  at::Tensor target(bool ignored) const {
    const auto count = c10::multiply_integers(rows());
    auto target = (classes() - 1) - at::arange(count) % classes();
    if (ignored) target = target.masked_fill((at::arange(count) % 4).eq(1), 0 - 100);
    return target.view(rows());
  }
};

at::Tensor weighted(const at::Tensor& loss) {
  if (loss.dim() == 0) return loss;
  const auto factors = values(loss.sizes(), 7);
  return is_dtensor(loss) ? (loss * place(factors, DTensor(loss).mesh(), DTensor(loss).placements())).sum()
                          : (loss * factors).sum();
}

// Forward and backward against the same call on plain tensors, on every rank.
template <typename Loss>
void compare(const at::Tensor& x, const DeviceMesh& mesh, const Placements& placements, const Loss& loss,
             const std::string& text) {
  auto plain = x.clone().set_requires_grad(true);
  auto logits = leaf(x, mesh, placements);
  const auto expected = loss(at::Tensor(plain)), actual = loss(at::Tensor(logits));
  check_close(actual, expected, text + ": loss", tolerance);
  weighted(expected).backward();
  weighted(actual).backward();
  check_close(logits.grad(), plain.grad(), text + ": gradient", tolerance);
  check_placed(logits.grad(), placements, text + ": gradient");
}

at::Tensor like(const at::Tensor& value, const at::Tensor& x, const Placements& placements) {
  return is_dtensor(x) ? at::Tensor(place(value, DTensor(x).mesh(), placements)) : value;
}

}  // namespace

TEST_CASE("cross_entropy over cut classes equals the plain one") {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      for (const auto& example : std::vector<Example>{{{6, 8}},
                                                      {{6, 7}},
                                                      {{5, 5}},
                                                      {{4, 3}},
                                                      {{1, 9}},
                                                      {{2, 7, 3}},
                                                      {{2, 5, 2, 3}},
                                                      {{7}},
                                                      {{0, 7}}})
        for (const Reduction reduction : {none, mean, sum})
          for (const double smoothing : {0.0, 0.1, 0.95})
            for (const bool with_weight : {false, true})
              for (const bool ignored : {false, true})
                for (const double scale : {1.0, 1e4}) {
                  if (example.sizes.size() == 1 && ignored) continue;  // one row
                  const auto x = values(example.sizes) * (scale / 1.5);
                  const auto weight = values({example.classes()}, 3).abs() + 0.2;
                  compare(
                      x, mesh, {Shard(example.class_dim())},
                      [&](const at::Tensor& logits) {
                        const auto w = with_weight
                                           ? like(weight, logits, {reduction == sum ? Shard(0) : Replicate()})
                                           : at::Tensor();
                        return at::cross_entropy_loss(logits,
                                                      like(example.target(ignored), logits, {Replicate()}), w,
                                                      reduction, -100, smoothing);
                      },
                      fmt::format("[{}], reduction {}, smoothing {}, weight {}, ignored {}, scale {}",
                                  fmt::join(example.sizes, ", "), reduction, smoothing, with_weight, ignored,
                                  scale));
                }
    });
}

TEST_CASE("cross_entropy with rows cut too, and with the targets placed otherwise") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const Example example{{5, 7}};
    const auto x = values(example.sizes);
    const auto weight = values({7}, 3).abs() + 0.2;
    const PolicyGuard guard({Fallback::error, ImplicitMoves::allow, PlainTensors::replicate_checked});
    for (const Reduction reduction : {none, mean, sum})
      for (const auto& of_target : std::vector<Placements>{
               {Shard(0), Replicate()}, {Replicate(), Replicate()}, {Replicate(), Shard(0)}, {}})
        for (const auto& of_logits : std::vector<Placements>{
                 {Shard(0), Shard(1)}, {Shard(1), Shard(1)}, {Shard(1), Shard(0)}, {Replicate(), Shard(1)}})
          compare(
              x, mesh, of_logits,
              [&](const at::Tensor& logits) {
                const auto target = example.target(true);
                return at::cross_entropy_loss(
                    logits, of_target.empty() ? target : like(target, logits, of_target),
                    like(weight, logits, {Replicate(), Replicate()}), reduction, -100, 0.1);
              },
              fmt::format("{} and {}, reduction {}", to_string(of_logits), to_string(of_target), reduction));
  });
}

TEST_CASE("cross_entropy with targets that are pending") {
  run_ranks(4, [](int) {
    const auto mesh = line(4);
    const auto pending = [&](const at::Tensor& value) {  // sums to value; no rank's part is a class
      return from_local(mesh.coordinate()[0] == 0 ? value + 300 : at::full_like(value, -100), mesh, {Partial()});
    };
    for (const auto& [sizes, target] : std::vector<std::pair<std::vector<std::int64_t>, at::Tensor>>{
             {{6}, at::scalar_tensor(4, at::kLong)}, {{3, 6}, at::tensor({5, 0, 2}, at::kLong)}})
      for (const auto& placement : {Shard(static_cast<std::int64_t>(sizes.size()) - 1), Shard(0), Replicate()}) {
        const auto x = values(sizes);
        check_close(at::cross_entropy_loss(place(x, mesh, {placement}), pending(target)), at::cross_entropy_loss(x, target),
                    placement.to_string(), tolerance);
      }
  });
}

TEST_CASE("cross_entropy over interleaved classes") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const Example example{{6, 9}};
    compare(
        values(example.sizes), mesh, {Interleaved(1, {5, 4})},
        [&](const at::Tensor& logits) {
          const CollectiveCounter counter;
          const auto loss =
              at::cross_entropy_loss(logits, like(example.target(true), logits, {Replicate()}),
                                     like(values({9}).abs(), logits, {Replicate()}), mean, -100, 0.2);
          check(!is_dtensor(logits) || counter.total() == 2, counter.to_string());
          return loss;
        },
        "interleaved");
  });
}

TEST_CASE(
    "cross_entropy over cut classes: two small all-reduces forward, none backward, rows of the gradient sum "
    "to 0") {
  for (const int ranks : {2, 4})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      constexpr std::int64_t rows = 6, classes = 40;
      const Example example{{rows, classes}};
      for (const Reduction reduction : {none, mean, sum})
        for (const double smoothing : {0.0, 0.1})
          for (const bool with_weight : {false, true}) {
            auto x = leaf(values(example.sizes), mesh, {Shard(1)});
            const auto target = place(example.target(true), mesh, {Replicate()});
            const auto weight =
                with_weight ? at::Tensor(place(values({classes}).abs(), mesh, {Replicate()})) : at::Tensor();
            CollectiveCounter counter;
            const auto loss = at::cross_entropy_loss(x, target, weight, reduction, -100, smoothing);
            check(counter.total() == 2 && counter.count(Collective::all_reduce, "tp", "loss") == 2,
                  counter.to_string());
            // A number per row, then the sum of exponentials and the target's logit; the rest where asked for.
            const std::int64_t numbers = rows * (3 + (smoothing > 0) + with_weight) + (smoothing > 0);
            check(counter.bytes() == 8 * numbers, counter.to_string());
            check_placed(loss, {Replicate()}, "loss");
            counter.reset();
            weighted(loss).backward();
            check(counter.total() == 0, "backward: " + counter.to_string());
            check(whole(x.grad()).sum(1).abs().max().item<double>() < 1e-14, "rows sum to 0");
          }
    });
}

TEST_CASE("cross_entropy with probabilities as targets over cut classes") {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{6, 7}, {4, 3}, {2, 7, 3}, {5}})
        for (const Reduction reduction : {none, mean, sum})
          for (const double smoothing : {0.0, 0.1})
            for (const bool cut : {false, true}) {
              const auto dim = static_cast<std::int64_t>(sizes.size() == 1 ? 0 : 1);
              const auto probabilities = values(sizes, 5).softmax(dim),
                         weight = values({sizes[static_cast<std::size_t>(dim)]}).abs();
              compare(
                  values(sizes), mesh, {Shard(dim)},
                  [&](const at::Tensor& logits) {
                    const auto p = like(probabilities, logits, {cut ? Shard(dim) : Replicate()});
                    const auto w = like(weight, logits, {Replicate()});
                    const CollectiveCounter counter;
                    auto loss = at::cross_entropy_loss(logits, p, w, reduction, -100, smoothing);
                    if (is_dtensor(loss)) loss = DTensor(loss).redistribute({Replicate()});
                    check(counter.total() == counter.count(Collective::all_reduce) && counter.total() <= 3,
                          "small all-reduces only: " + counter.to_string());
                    return loss;
                  },
                  fmt::format("[{}], reduction {}, smoothing {}, cut {}", fmt::join(sizes, ", "), reduction,
                              smoothing, cut));
            }
    });
}

TEST_CASE("cross_entropy over cut classes can be differentiated twice") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const Example example{{4, 5}};
    const auto second = [&](at::Tensor x) {
      x.set_requires_grad(true);
      const auto loss = at::cross_entropy_loss(x, like(example.target(true), x, {Replicate()}),
                                               like(values({5}).abs(), x, {Replicate()}), mean, -100, 0.1);
      const auto gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
      return torch::autograd::grad({gradient.square().sum()}, {x})[0];
    };
    check_close(second(place(values(example.sizes), mesh, {Shard(1)})), second(values(example.sizes)),
                "second", tolerance);
  });
}

TEST_CASE("cross_entropy over cut classes: dtypes, inference mode, retained graphs") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    const Example example{{6, 7}};
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto x = values(example.sizes, 0, dtype);
      auto logits = leaf(x, mesh, {Shard(1)});
      const auto target = place(example.target(true), mesh, {Replicate()});
      const auto loss = at::cross_entropy_loss(logits, target);
      const double near = dtype == at::kFloat ? 1e-6 : 2e-2;
      auto plain = x.clone().set_requires_grad(true);
      const auto expected = at::cross_entropy_loss(plain, example.target(true));
      check_close(loss, expected, "loss", near);
      loss.backward({}, true);
      loss.backward();
      expected.backward({}, true);
      expected.backward();
      check_close(logits.grad(), plain.grad(), "gradient of both backwards", near);
      const c10::InferenceMode inference;
      check_close(at::cross_entropy_loss(logits, target), expected, "inference", near);
    }
  });
}

TEST_CASE("cross_entropy over cut classes: what the stock operator refuses is refused, on all ranks") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = leaf(values({4, 6}), mesh, {Shard(1)});
    const auto target = place(at::arange(4), mesh, {Replicate()});
    error_of<c10::Error>([&] { at::cross_entropy_loss(x, place(at::arange(3), mesh, {Replicate()})); },
                         "sizes");
    error_of<c10::Error>([&] { at::cross_entropy_loss(x, target, {}, mean, -100, 1.5); }, "smoothing");
    const auto outside = place(at::full({4}, 6), mesh, {Replicate()});
    check_contains(error_of<c10::IndexError>([&] { at::cross_entropy_loss(x, outside); }, "class 6 of 6"),
                   "out of bounds");
  });
}

TEST_CASE("LossParallel: logits that would move are refused inside, cut and whole ones are not") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto x = values({4, 6});
    const auto target = place(at::arange(4), mesh, {Replicate()});
    const auto expected = at::cross_entropy_loss(x, at::arange(4));
    const auto pending = from_local(rank == 0 ? x : at::zeros_like(x), mesh, {Partial()});
    const dtensor::detail::CrossEntropyTerms terms{1, 6};
    {
      const LossParallel scope;
      check(LossParallel::active(), "inside");
      for (const auto& placement : {Shard(1), Shard(0), Replicate()})
        check_close(at::cross_entropy_loss(place(x, mesh, {placement}), target), expected, "inside",
                    tolerance);
      const auto refused =
          refusal_of<UnsupportedError>([&] { at::cross_entropy_loss(pending, target); }, "pending");
      check_contains(refused, "LossParallel");
    }
    check(!LossParallel::active(), "outside");
    check_close(dtensor::detail::cross_entropy(pending, target, {}, terms), expected, "pending, outside",
                tolerance);
  });
}
