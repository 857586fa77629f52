#include "loss_reference.h"

#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

constexpr double tolerance = 1e-12;

struct Placed {
  Placements hidden, weight;
};

// Against the definition on plain tensors, and against the two calls that it replaces.
void compare(const std::vector<std::int64_t>& rows, std::int64_t classes, const DeviceMesh& mesh,
             const Placed& how, LinearCrossEntropyOptions options, const std::string& text) {
  constexpr std::int64_t width = 5;
  auto sizes = rows;
  sizes.push_back(width);
  const auto fh = values(sizes), fw = values({classes, width}, 1);
  const auto target = targets(rows, options.classes.value_or(classes));
  auto plain_h = fh.clone().set_requires_grad(true), plain_w = fw.clone().set_requires_grad(true);
  const auto expected = reference_loss(at::linear(plain_h.tanh(), plain_w), target, options);
  as_number(expected).backward();
  const Placements everywhere(how.hidden.size());
  options.weight = placed(options.weight, mesh, everywhere);
  const auto on_mesh = place(target, mesh, everywhere);
  for (const bool fused : {true, false}) {
    auto h = leaf(fh, mesh, how.hidden), w = leaf(fw, mesh, how.weight);
    // A hidden that is no leaf, so that its gradient flows on.
    const auto loss = fused ? linear_cross_entropy(h.tanh(), w, on_mesh, options)
                            : vocab_parallel_cross_entropy(at::linear(h.tanh(), w), on_mesh, options);
    const auto name = text + (fused ? ": fused" : ": two calls");
    check_close(loss, expected, name, tolerance);
    as_number(loss).backward();
    check_close(h.grad(), plain_h.grad(), name + ": hidden", tolerance);
    check_close(w.grad(), plain_w.grad(), name + ": weight", tolerance);
    if (fused && mesh.ndim() == 1) check_placed(h.grad(), how.hidden, name + ": hidden, reduced");
  }
}

}  // namespace

TEST_CASE("linear_cross_entropy equals linear and its loss, for all options and chunks") {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      for (const auto& rows : std::vector<std::vector<std::int64_t>>{{7}, {2, 3}})
        for (const std::int64_t classes : {12, 7, 5, 3})  // even, uneven, with empty parts over 3 or 4
          for (const std::int64_t chunk : {0, 1, 4})
            for (const auto reduction : {LossReduction::none, LossReduction::mean, LossReduction::sum})
              for (const bool all : {false, true})
                for (const auto& hidden : std::vector<Placement>{Replicate(), Shard(0)}) {
                  LinearCrossEntropyOptions options;
                  options.chunk = chunk;
                  options.reduction = reduction;
                  if (all) {
                    options.label_smoothing = 0.1;
                    options.smoothing = LabelSmoothing::megatron;
                    options.z_loss = 0.01;
                    options.classes = classes - 1;
                    options.weight = values({classes - 1}, 3).abs() + 0.2;
                  }
                  compare(rows, classes, mesh, {{hidden}, {Shard(0)}}, options,
                          fmt::format("[{}] rows, {} classes, chunk {}, reduction {}, all {}, hidden {}",
                                      fmt::join(rows, ", "), classes, chunk, static_cast<int>(reduction), all,
                                      hidden.to_string()));
                }
    });
}

TEST_CASE("linear_cross_entropy with rows cut by data parallel, and other placements of hidden and weight") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    for (const auto reduction : {LossReduction::none, LossReduction::mean, LossReduction::sum})
      for (const auto& how :
           std::vector<Placed>{{{Shard(0), Replicate()}, {Replicate(), Shard(0)}},
                               {{Shard(0), Shard(1)}, {Replicate(), Shard(0)}},
                               {{Shard(0), Shard(0)}, {Replicate(), Shard(0)}},
                               {{Shard(0), Shard(2)}, {Replicate(), Shard(0)}},
                               {{Shard(0), Shard(1)}, {Replicate(), Replicate()}},
                               {{Replicate(), Replicate()}, {Shard(0), Shard(0)}},
                               {{Replicate(), Replicate()}, {Replicate(), Interleaved(0, {4, 3})}}}) {
        LinearCrossEntropyOptions options;
        options.reduction = reduction;
        options.label_smoothing = 0.1;
        options.chunk = 2;
        compare({4, 3}, 7, mesh, how, options, to_string(how.hidden) + " and " + to_string(how.weight));
      }
  });
}

TEST_CASE("linear_cross_entropy: what it moves") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    constexpr std::int64_t rows = 12, width = 5, classes = 40;
    for (const auto& placement : {Replicate(), Shard(0)})
      for (const std::int64_t chunk : {0, 1, 5}) {
        auto h = leaf(values({rows, width}), mesh, {placement}),
             w = leaf(values({classes, width}, 1), mesh, {Shard(0)});
        const auto target = place(targets({rows}, classes), mesh, {Replicate()});
        LinearCrossEntropyOptions options;
        options.chunk = chunk;
        CollectiveCounter counter;
        const auto loss = linear_cross_entropy(h, w, target, options);
        const std::int64_t gathered = placement.is_shard() ? rows * width / 2 : 0;
        check(counter.count(Collective::all_reduce) == 2 && counter.total() == 2 + placement.is_shard() &&
                  counter.bytes() == 8 * (3 * rows + gathered),
              "forward, whatever the chunks: " + counter.to_string());
        counter.reset();
        loss.backward();
        const auto expected = placement.is_shard() ? Collective::reduce_scatter : Collective::all_reduce;
        check(counter.total() == 1 && counter.count(expected) == 1 &&
                  counter.bytes() == 8 * rows * width / (placement.is_shard() ? 2 : 1),
              "backward, the gradient of hidden once: " + counter.to_string());
      }
  });
}

TEST_CASE("linear_cross_entropy: logits never exist whole") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    constexpr std::int64_t rows = 1024, width = 16, classes = 4096, chunk = 64;
    constexpr std::int64_t local = rows * classes / 2 * 8, of_chunk = chunk * classes / 2 * 8;
    auto h = leaf(values({rows, width}), mesh, {Replicate()}),
         w = leaf(values({classes, width}, 1), mesh, {Shard(0)});
    const auto target = place(targets({rows}, classes), mesh, {Replicate()});
    LinearCrossEntropyOptions options;
    options.chunk = chunk;
    // A chunk, blocks of it in flight, numbers per row, and backward the gradients of hidden (twice, while it is
    // reduced) and weight.
    constexpr std::int64_t besides = 3 * (1 << 16) * 8 + 40 * rows * 8;
    constexpr std::int64_t gradients = (3 * rows * width + 2 * classes / 2 * width) * 8;
    PeakMemory memory;
    const auto loss = linear_cross_entropy(h, w, target, options);
    check(memory.peak() < of_chunk + besides, fmt::format("forward {} of {}", memory.peak(), local));
    memory.reset();
    loss.backward();
    check(memory.peak() < of_chunk + besides + gradients,
          fmt::format("backward {} of {}", memory.peak(), local));
    check(of_chunk + besides + gradients < local / 2, "this test can fail");
  });
}

TEST_CASE(
    "linear_cross_entropy: 16 bits, only one gradient wanted, twice differentiated, weights of no graph") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto fh = values({6, 4}), fw = values({7, 4}, 1), target = targets({6}, 7);
    const auto on_mesh = place(target, mesh, {Replicate()});
    const auto plain_h = fh.clone().set_requires_grad(true), plain_w = fw.clone().set_requires_grad(true);
    reference_loss(at::linear(plain_h, plain_w), target, {}).backward();
    auto h = leaf(fh, mesh, {Replicate()}), w = leaf(fw, mesh, {Shard(0)});
    linear_cross_entropy(h, w.detach(), on_mesh).backward();
    linear_cross_entropy(h.detach(), w, on_mesh).backward();
    check_close(h.grad(), plain_h.grad(), "hidden alone", tolerance);
    check_close(w.grad(), plain_w.grad(), "weight alone", tolerance);
    {
      const at::NoGradGuard no_grad;
      check_close(linear_cross_entropy(h, w, on_mesh), reference_loss(at::linear(fh, fw), target, {}),
                  "no graph", tolerance);
    }
    const auto low_h = fh.to(at::kBFloat16), low_w = fw.to(at::kBFloat16);
    auto bh = leaf(low_h, mesh, {Replicate()}), bw = leaf(low_w, mesh, {Shard(0)});
    auto fused = linear_cross_entropy(bh, bw, on_mesh, LinearCrossEntropyOptions({}, 2));
    const auto low = reference_loss(at::linear(low_h, low_w).to(at::kFloat), target, {});
    check_close(fused, low, "bfloat16", 1e-6);
    fused.backward();
    check(at::allclose(whole(bw.grad()).to(at::kDouble), plain_w.grad(), 3e-2, 3e-2), "bfloat16: weight");
    check(bw.grad().scalar_type() == at::kBFloat16, "a gradient of the weight's type");
    const auto second = [](const at::Tensor& x, const at::Tensor& loss) {
      const auto gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
      return torch::autograd::grad({gradient.square().sum()}, {x})[0];
    };
    auto again = leaf(fw, mesh, {Shard(0)});
    auto plain = fw.clone().set_requires_grad(true);
    check_close(second(again, linear_cross_entropy(h, again, on_mesh)),
                second(plain, reference_loss(at::linear(fh, plain), target, {})), "second derivative",
                tolerance);
  });
}

TEST_CASE("linear_cross_entropy under autocast computes as linear and its loss do") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    auto h = leaf(values({6, 4}, 0, at::kFloat), mesh, {Replicate()}),
         w = leaf(values({7, 4}, 1, at::kFloat), mesh, {Shard(0)});
    const auto target = place(targets({6}, 7), mesh, {Replicate()});
    const AutocastScope autocast(mesh);
    const auto loss = linear_cross_entropy(h, w, target);
    check_close(loss, at::cross_entropy_loss(at::linear(h, w), target), "loss", 1e-5);
    loss.backward();
    check(w.grad().scalar_type() == at::kFloat && h.grad().scalar_type() == at::kFloat,
          "gradients of the leaves' type");
  });
}

TEST_CASE("linear_cross_entropy refuses what does not fit, on all ranks, before communication") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto h = place(values({6, 4}), mesh, {Replicate()}), w = place(values({7, 4}), mesh, {Shard(0)});
    const auto target = place(targets({6}, 7), mesh, {Replicate()});
    const auto refused = [&](const at::Tensor& hidden, const at::Tensor& weight,
                             const LinearCrossEntropyOptions& options, const std::string& part) {
      check_contains(refusal_of<Error>([&] { linear_cross_entropy(hidden, weight, target, options); }, part),
                     part);
    };
    refused(values({6, 4}), w, {}, "hidden [6, 4] is a plain tensor");
    refused(h, values({7, 4}), {}, "the weight [7, 4] is a plain tensor");
    refused(h, place(values({7, 4}), mesh, {Shard(1)}), {}, "Shard(0)");
    refused(h, place(values({7, 3}), mesh, {Shard(0)}), {}, "do not fit");
    LinearCrossEntropyOptions options;
    options.chunk = -1;
    refused(h, w, options, "chunk");
  });
}
