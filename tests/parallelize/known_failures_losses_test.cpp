// Failures of other stacks in losses, as tests named by their case; K48, K50 and K51 are in tests/dtensor too.
#include "loss_reference.h"

#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <mutex>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl(std::int64_t vocabulary, std::int64_t width)
      : embedding(register_module("embedding", torch::nn::Embedding(vocabulary, width))),
        head(register_module("head",
                             torch::nn::Linear(torch::nn::LinearOptions(width, vocabulary).bias(false)))) {
    const torch::NoGradGuard no_grad;
    to(torch::kDouble);
    embedding->weight.copy_(values({vocabulary, width}));
    head->weight.copy_(values({vocabulary, width}, 1));
  }
  at::Tensor forward(const at::Tensor& tokens) { return head(torch::tanh(embedding(tokens))); }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(LanguageModel);

LanguageModel build(std::int64_t vocabulary, std::int64_t width) {
  static std::mutex mutex;  // one generator for all rank threads
  const std::lock_guard lock(mutex);
  return LanguageModel(vocabulary, width);
}

at::Tensor hidden_of(LanguageModel& model, const at::Tensor& tokens) {
  return torch::tanh(model->embedding(tokens));
}

}  // namespace

TEST_CASE("K33: gradients of chunks: the fused head passes on what the head and its loss do") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto input = values({6, 3}), first = values({4, 3}, 1), second = values({8, 4}, 2);
    const auto target = at::arange(6) % 8;
    auto p1 = first.clone().set_requires_grad(true), p2 = second.clone().set_requires_grad(true);
    at::cross_entropy_loss(at::linear(at::linear(input, p1), p2), target, {}, at::Reduction::Sum).backward();
    auto w1 = leaf(first, mesh, {Replicate()}), w2 = leaf(second, mesh, {Shard(0)});
    LinearCrossEntropyOptions options;
    options.reduction = LossReduction::sum;
    options.chunk = 2;
    linear_cross_entropy(at::linear(place(input, mesh, {Replicate()}), w1), w2,
                         place(target, mesh, {Replicate()}), options)
        .backward();
    check_close(w1.grad(), p1.grad(), "upstream", 1e-12);
    check_close(w2.grad(), p2.grad(), "head", 1e-12);
  });
}

TEST_CASE("K46: a vocabulary that does not divide") {
  for (const auto& [ranks, vocabulary] : std::vector<std::pair<int, std::int64_t>>{{2, 7}, {4, 5}})
    for (const int form : {0, 1, 2})
      run_ranks(ranks, [&](int) {
        const auto mesh = line(ranks);
        auto model = build(vocabulary, 4), reference = build(vocabulary, 4);
        ParallelPlan plan;
        plan.rules = {{"embedding", RowwiseParallel()}, {"head", ColwiseParallel()}};
        plan.policy = Policy{Fallback::error, ImplicitMoves::allow, PlainTensors::replicate_checked};
        parallelize_module(*model, mesh, plan);
        torch::optim::SGD mine(model->parameters(), 0.5), theirs(reference->parameters(), 0.5);
        for (int step = 0; step < 20; ++step) {
          const auto tokens =
              (at::arange(12).view({2, 6}) * 5 + step) % vocabulary;  // the last class among them
          const auto target = (tokens + 3) % vocabulary;
          const auto x = place(tokens, mesh, {Replicate()}), y = place(target, mesh, {Replicate()});
          const auto loss = form == 0   ? at::cross_entropy_loss(model(x).flatten(0, 1), y.flatten())
                            : form == 1 ? vocab_parallel_cross_entropy(model(x), y)
                                        : linear_cross_entropy(hidden_of(model, x), model->head->weight, y,
                                                               LinearCrossEntropyOptions({}, 5));
          const auto expected = at::cross_entropy_loss(reference(tokens).flatten(0, 1), target.flatten());
          check_close(loss, expected, fmt::format("loss of step {}", step), 1e-12);
          for (auto* optimizer : {&mine, &theirs}) optimizer->zero_grad();
          loss.backward();
          expected.backward();
          mine.step();
          theirs.step();
        }
        const auto parameters = reference->named_parameters();
        for (const auto& item : model->named_parameters())
          check_close(item.value(), parameters[item.key()], item.key(), 1e-11);
      });
}

TEST_CASE("K48: label smoothing counts the whole vocabulary, in both definitions") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const at::Tensor logits = place(counting({1, 4}), mesh, {Shard(1)}),
               target = place(at::full({1}, 3), mesh, {Replicate()});
    const auto loss = [&](double smoothing, LabelSmoothing definition) {
      return vocab_parallel_cross_entropy(logits, target,
                                          {.label_smoothing = smoothing, .smoothing = definition})
          .item<double>();
    };
    check(std::abs(loss(0, LabelSmoothing::pytorch) - 0.440190) < 1e-6, "none");
    check(std::abs(loss(0.1, LabelSmoothing::pytorch) - 0.590190) < 1e-6, "PyTorch's");
    // 0.1 / 3 to each of three others: 0.440190 + 0.1 / 3 * (1 + 2 + 3)
    check(std::abs(loss(0.1, LabelSmoothing::megatron) - 0.640190) < 1e-6, "Megatron's");
  });
}

TEST_CASE("K49: whole logits into the vocabulary-parallel loss") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = counting({1, 4});
    const auto target = place(at::full({1}, 3), mesh, {Replicate()});
    const auto wanted = full.softmax(-1) - at::one_hot(at::full({1}, 3), 4);
    const LossParallel scope;
    for (const auto& placement : {Replicate(), Shard(1), Shard(0)})
      for (const bool own : {false, true}) {
        auto logits = leaf(full, mesh, {placement});
        const auto loss =
            own ? vocab_parallel_cross_entropy(logits, target) : at::cross_entropy_loss(logits, target);
        check(std::abs(loss.item<double>() - 0.440190) < 1e-6, placement.to_string());
        loss.backward();
        check_close(logits.grad(), wanted, placement.to_string(), 1e-12);
      }
    const auto text =
        refusal_of<UnsupportedError>([&] { vocab_parallel_cross_entropy(full, target); }, "plain logits");
    check_contains(text, "[1, 4]");
    check_contains(text, "from_local");
  });
}

TEST_CASE("K50: ranks and steps without a valid target") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto x = values({4, 6}), some = at::tensor({-100, -100, 1, 5}, at::kLong), none = at::full({4}, -100);
    for (const auto& target : {some, none}) {
      CrossEntropyOptions options;
      options.label_smoothing = 0.1;
      auto plain = x.clone().set_requires_grad(true);
      auto logits = leaf(x, mesh, {Shard(0), Shard(1)});
      const auto expected = at::cross_entropy_loss(plain, target, {}, at::Reduction::Mean, -100, 0.1);
      const auto loss =
          vocab_parallel_cross_entropy(logits, place(target, mesh, {Shard(0), Replicate()}), options);
      check_close(loss, expected, "loss: NaN where nothing counts", 1e-12);
      expected.backward();
      loss.backward();
      check_close(logits.grad(), plain.grad(), "gradient", 1e-12);
    }
  });
}
