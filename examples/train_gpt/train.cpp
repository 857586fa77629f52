#include "train.h"

#include "data.h"
#include "gpt.h"
#include "sample.h"

#include <chrono>
#include <mutex>

namespace train_gpt {
namespace {

// The same weights on every rank, for the same options. Under a lock, because LibTorch's generator belongs to the
// process: ranks that are threads would draw from it in turns.
GPT build_model(const TrainOptions& options) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  GPT model(GPTOptions{options.vocabulary, options.hidden, options.heads, options.layers, options.sequence,
                       options.dropout, options.attention_bias});
  model->to(options.dtype == "float64" ? torch::kFloat64 : torch::kFloat32);
  return model;
}

// The mean over the batch of the loss of each next byte.
at::Tensor loss_of(GPT& model, const at::Tensor& inputs, const at::Tensor& targets) {
  const at::Tensor logits = model(inputs);
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), targets.view({-1}));
}

// Leaves the gradient of the batch's mean loss in the parameters, micro-batch by micro-batch; returns that loss.
at::Tensor accumulate_gradients(GPT& model, Setting& setting, const Batch& batch,
                                std::int64_t micro_batches) {
  const std::vector<at::Tensor> inputs = batch.inputs.chunk(micro_batches);
  const std::vector<at::Tensor> targets = batch.targets.chunk(micro_batches);
  at::Tensor total;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto postponed = i + 1 < inputs.size() ? setting.postpone_gradients(*model) : nullptr;
    const double share = static_cast<double>(inputs[i].size(0)) / static_cast<double>(batch.inputs.size(0));
    const at::Tensor loss =
        loss_of(model, setting.distribute_batch(inputs[i]), setting.distribute_batch(targets[i])) * share;
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

std::string sample_text(GPT& model, Setting& setting, const Text& text, const TrainOptions& options) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const auto next_logits = [&](const at::Tensor& tokens) {
    return setting.whole(model(setting.replicate(tokens)).select(1, -1)).squeeze(0);
  };
  return sample(text.opening(options.sequence), next_logits,
                {.bytes = options.sample, .seed = static_cast<std::uint64_t>(options.seed)});
}

}  // namespace

TrainResult train(const TrainOptions& options, Setting& setting,
                  const std::function<void(const StepReport&)>& on_step) {
  using Clock = std::chrono::steady_clock;
  const Text text(options.text);
  GPT model = build_model(options);
  setting.prepare(*model);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(options.lr));

  TrainResult result;
  model->train();
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    const auto start = Clock::now();
    const Batch batch = text.batch(options.batch, options.sequence, options.seed, step);
    optimizer.zero_grad();
    const at::Tensor loss = accumulate_gradients(model, setting, batch, options.accumulate);
    setting.clip_gradients(model->parameters(), options.clip);
    optimizer.step();
    result.losses.push_back(loss.item<double>());

    const std::chrono::duration<double> seconds = Clock::now() - start;
    const auto tokens = static_cast<double>(options.batch * options.sequence);
    const BytesByDim bytes = setting.take_bytes();
    if (on_step)
      on_step({step, result.losses.back(), seconds.count() * 1e3, tokens / seconds.count(), bytes});
  }
  if (options.collect_parameters) {
    for (const auto& parameter : model->named_parameters()) {
      result.parameters[parameter.key()] = setting.whole(parameter.value()).detach();
    }
  }
  if (options.sample > 0) result.sample = sample_text(model, setting, text, options);
  return result;
}

}  // namespace train_gpt
