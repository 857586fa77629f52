#include "loss_reference.h"

#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

constexpr double tolerance = 1e-12;

void compare(const at::Tensor& x, const at::Tensor& target, const DeviceMesh& mesh,
             const Placements& placements, CrossEntropyOptions options, const std::string& text) {
  auto plain = x.clone().set_requires_grad(true);
  const auto expected = reference_loss(plain, target, options);
  as_number(expected).backward();
  const Placements everywhere(placements.size());
  options.weight = placed(options.weight, mesh, everywhere);
  auto logits = leaf(x, mesh, placements);
  const auto loss = vocab_parallel_cross_entropy(logits, place(target, mesh, everywhere), options);
  check_close(loss, expected, text + ": loss", tolerance);
  as_number(loss).backward();
  check_placed(logits.grad(), placements, text + ": gradient");
  check_close(logits.grad(), plain.grad(), text + ": gradient", tolerance);
  if (options.z_loss == 0) {
    // Of the order of the gradient's rounding errors, for any loss.
    const auto sums = whole(logits.grad()).sum(-1).abs().max().item<double>();
    check(sums < 1e-13, fmt::format("{}: rows of the gradient sum to {}", text, sums));
  }
}

}  // namespace

TEST_CASE("vocab_parallel_cross_entropy equals its definition for all options") {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      // even, uneven and with empty parts over 2, 3 or 4 ranks; flat and with two dimensions of rows
      for (const auto& sizes :
           std::vector<std::vector<std::int64_t>>{{6, 12}, {6, 7}, {5, 2, 5}, {2, 3, 3}, {4, 1}, {9}})
        for (const auto smoothing : {LabelSmoothing::pytorch, LabelSmoothing::megatron})
          for (const double e : {0.0, 0.1, 0.9})
            for (const auto reduction : {LossReduction::none, LossReduction::mean, LossReduction::sum})
              for (const bool weight : {false, true})
                for (const double z : {0.0, 1e-2})
                  for (const std::int64_t padding : {0, 2})
                    for (const double scale : {1.0, 1e4}) {
                      const auto classes = sizes.back() - padding;
                      if (classes < 1 || (scale > 1 && z > 0)) continue;  // squares of 1e4 hide all else
                      CrossEntropyOptions options;
                      options.label_smoothing = e;
                      options.smoothing = smoothing;
                      options.reduction = reduction;
                      options.z_loss = z;
                      options.ignore_index = 1;
                      if (padding) options.classes = classes;
                      if (weight) options.weight = values({classes}, 3).abs() + 0.2;
                      auto rows = sizes;
                      rows.pop_back();
                      auto x = values(sizes) * (scale / 1.5);
                      if (padding) x.narrow(-1, classes, padding).fill_(padding > 1 ? 1e300 : 0);
                      compare(
                          x, targets(rows, classes, 1).masked_fill(targets(rows, classes, 1).ge(classes), 0),
                          mesh, {Shard(static_cast<std::int64_t>(sizes.size()) - 1)}, options,
                          fmt::format(
                              "[{}] smoothing {} ({}), reduction {}, weight {}, z {}, padding {}, scale {}",
                              fmt::join(sizes, ", "), e, static_cast<int>(smoothing),
                              static_cast<int>(reduction), weight, z, padding, scale));
                    }
    });
}

TEST_CASE("vocab_parallel_cross_entropy: [sequence, batch, vocabulary] and rows cut too") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto x = values({3, 4, 7});
    CrossEntropyOptions options;
    options.label_smoothing = 0.1;
    options.z_loss = 0.01;
    options.classes = 6;
    for (const auto reduction : {LossReduction::none, LossReduction::mean, LossReduction::sum})
      for (const auto& placements : std::vector<Placements>{{Shard(1), Shard(2)},
                                                            {Shard(0), Shard(2)},
                                                            {Shard(2), Shard(2)},
                                                            {Shard(2), Shard(1)},
                                                            {Shard(0), Shard(1)},
                                                            {Replicate(), Shard(2)},
                                                            {Replicate(), Replicate()}}) {
        options.reduction = reduction;
        compare(x, targets({3, 4}, 6), mesh, placements, options, to_string(placements));
      }
    // A batch-first tensor, seen sequence first.
    auto plain = x.clone().set_requires_grad(true);
    auto logits = leaf(x, mesh, {Shard(0), Shard(2)});
    const auto target = targets({4, 3}, 6);
    const auto expected = reference_loss(plain.transpose(0, 1), target, options);
    const auto loss = vocab_parallel_cross_entropy(logits.transpose(0, 1),
                                                   place(target, mesh, {Replicate(), Replicate()}), options);
    expected.backward();
    loss.backward();
    check_close(loss, expected, "transposed", tolerance);
    check_close(logits.grad(), plain.grad(), "transposed: gradient", tolerance);
  });
}

TEST_CASE("vocab_parallel_cross_entropy: what it moves") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    constexpr std::int64_t rows = 8, classes = 100;
    for (const bool all : {false, true}) {
      auto logits = leaf(values({2, 4, classes}), mesh, {Shard(2)});
      const auto target = place(targets({2, 4}, classes), mesh, {Replicate()});
      CrossEntropyOptions options;
      if (all) {
        options.label_smoothing = 0.1;
        options.weight = place(values({classes}).abs(), mesh, {Shard(0)});
        options.z_loss = 0.1;
      }
      CollectiveCounter counter;
      const auto loss = vocab_parallel_cross_entropy(logits, target, options);
      check(counter.total() == 2 && counter.count(Collective::all_reduce, "tp", "loss") == 2,
            counter.to_string());
      check(counter.bytes() == 8 * (all ? 5 * rows + 1 : 3 * rows), counter.to_string());
      counter.reset();
      loss.backward();
      check(counter.total() == 0, "backward: " + counter.to_string());
    }
  });
}

TEST_CASE("vocab_parallel_cross_entropy: a few numbers per row forward, that and the gradient backward") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    constexpr std::int64_t rows = 512, classes = 8192, local = rows * classes / 2 * 8;
    // One block of logits at a time (half a megabyte, three of them in flight) and some numbers per row.
    constexpr std::int64_t besides = 3 * (1 << 16) * 8 + 40 * rows * 8;
    for (const double smoothing : {0.0, 0.1}) {
      auto logits = leaf(values({rows, classes}), mesh, {Shard(1)});
      const auto target = place(targets({rows}, classes), mesh, {Replicate()});
      CrossEntropyOptions options;
      options.label_smoothing = smoothing;
      PeakMemory memory;
      const auto loss = vocab_parallel_cross_entropy(logits, target, options);
      check(memory.peak() > 0 && memory.peak() < besides,
            fmt::format("forward {} of {}", memory.peak(), local));
      memory.reset();
      loss.backward();
      check(memory.peak() >= local && memory.peak() < local + besides,
            fmt::format("backward {} of {}", memory.peak(), local));
    }
  });
}

TEST_CASE("vocab_parallel_cross_entropy of 16 bits computes in float, and can be differentiated twice") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto target = targets({6}, 7);
    CrossEntropyOptions options;
    options.label_smoothing = 0.1;
    options.smoothing = LabelSmoothing::megatron;
    options.z_loss = 0.1;
    options.classes = 6;
    const auto low = values({6, 7}, 0, at::kBFloat16);
    const auto of_classes = targets({6}, 6), on_mesh = at::Tensor(place(of_classes, mesh, {Replicate()}));
    check_close(vocab_parallel_cross_entropy(place(low, mesh, {Shard(1)}), on_mesh, options),
                reference_loss(low.to(at::kFloat), of_classes, options), "bfloat16", 1e-6);
    const auto second = [](at::Tensor x, const auto& loss) {
      x.set_requires_grad(true);
      const auto gradient = torch::autograd::grad({loss(x)}, {x}, {}, true, true)[0];
      return torch::autograd::grad({gradient.square().sum()}, {x})[0];
    };
    const auto x = values({6, 7});
    check_close(
        second(place(x, mesh, {Shard(1)}),
               [&](const at::Tensor& y) { return vocab_parallel_cross_entropy(y, on_mesh, options); }),
        second(x.clone(), [&](const at::Tensor& y) { return reference_loss(y, of_classes, options); }),
        "second derivative", tolerance);
  });
}

TEST_CASE("vocab_parallel_cross_entropy: a value of -inf, and a row that has no valid target on any rank") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    auto x = values({3, 6});
    const double infinity = std::numeric_limits<double>::infinity();
    x.narrow(1, 0, 3).fill_(-infinity);  // all that rank 0 has
    const auto ignored = at::full({3}, -100), some = at::full({3}, 4);
    for (const auto& target : {some, ignored}) {
      auto plain = x.clone().set_requires_grad(true);
      auto logits = leaf(x, mesh, {Shard(1)});
      const auto expected = at::cross_entropy_loss(plain, target);
      const auto loss = vocab_parallel_cross_entropy(logits, place(target, mesh, {Replicate()}));
      check_close(loss, expected, "loss", tolerance);
      expected.backward();
      loss.backward();
      check_close(logits.grad(), plain.grad(), "gradient", tolerance);
    }
  });
}

TEST_CASE("vocab_parallel_cross_entropy refuses what does not fit, on all ranks, before communication") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto logits = place(values({4, 6}), mesh, {Shard(1)});
    const auto target = place(at::arange(4), mesh, {Replicate()});
    const auto refused = [&](const at::Tensor& x, const at::Tensor& t, const CrossEntropyOptions& options,
                             const std::string& part) {
      check_contains(refusal_of<Error>([&] { vocab_parallel_cross_entropy(x, t, options); }, part), part);
    };
    refused(values({4, 6}), target, {}, "plain tensor");
    refused(logits, place(at::arange(3), mesh, {Replicate()}), {}, "[3]");
    refused(logits, place(values({4}), mesh, {Replicate()}), {}, "probabilities");
    refused(logits, target, {.label_smoothing = 1.0}, "label_smoothing");
    refused(logits, target, {.classes = 7}, "7 classes");
    refused(logits, target, {.weight = at::ones({5})}, "weight");
    refused(logits, at::arange(4), {}, "'target' is a plain tensor");
    const auto outside = error_of<c10::IndexError>(
        [&] { vocab_parallel_cross_entropy(logits, target, {.classes = 3}); }, "a target of the padding");
    check_contains(outside, "there are 3 classes");
  });
}
