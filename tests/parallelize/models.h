// Two language models of the user's own modules, small and in float64: a GPT (LayerNorm, learned positions, GELU) and a
// Llama-like one (RMS norm, rotary positions, SwiGLU, grouped-query attention). Plain LibTorch; plans by name.
#pragma once

#include <parallelize/plan.h>
#include <support/check.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::testing {

struct ModelOptions {
  bool llama = false;
  bool packed = false;  // q, k, v (and gate, up) in one Linear
  bool tied = false;    // one table for embedding and head
  std::int64_t layers = 1, hidden = 24, heads = 12, kv_heads = 12, feed_forward = 36, vocabulary = 29, sequence = 12;
};

inline torch::nn::Linear projection(std::int64_t from, std::int64_t to, bool bias = false) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(bias));
}

struct NormImpl : torch::nn::Module {
  NormImpl(const ModelOptions& options) {
    if (options.llama)
      rms = register_module("rms", std::make_shared<RmsImpl>(options.hidden));
    else
      layer = register_module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden})));
  }
  struct RmsImpl : torch::nn::Module {
    explicit RmsImpl(std::int64_t size) : weight(register_parameter("weight", torch::ones({size}))) {}
    at::Tensor forward(const at::Tensor& x) { return torch::rms_norm(x, weight.sizes(), weight, 1e-6); }
    at::Tensor weight;
  };
  at::Tensor forward(const at::Tensor& x) { return rms ? rms->forward(x) : layer(x); }
  std::shared_ptr<RmsImpl> rms;
  torch::nn::LayerNorm layer{nullptr};
};
TORCH_MODULE(Norm);

// Rotates pairs of the last dimension of [batch, heads, time, size] by angles that grow with the position (RoFormer).
inline at::Tensor rotary(const at::Tensor& x) {
  const auto half = x.size(3) / 2;
  const auto options = torch::TensorOptions().dtype(torch::kDouble);
  const auto angles = torch::outer(torch::arange(x.size(2), options),
                                   torch::pow(10000.0, -torch::arange(half, options) / half));
  const auto cosine = angles.cos(), sine = angles.sin();
  const auto a = x.slice(3, 0, half), b = x.slice(3, half, 2 * half);
  return torch::cat({a * cosine - b * sine, a * sine + b * cosine}, 3);
}

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const ModelOptions& options)
      : llama(options.llama),
        head_size(options.hidden / options.heads),
        kv_size(head_size * options.kv_heads) {
    if (options.packed) {
      wqkv = register_module("wqkv", projection(options.hidden, options.hidden + 2 * kv_size));
    } else {
      wq = register_module("wq", projection(options.hidden, options.hidden));
      wk = register_module("wk", projection(options.hidden, kv_size));
      wv = register_module("wv", projection(options.hidden, kv_size));
    }
    wo = register_module("wo", projection(options.hidden, options.hidden, !llama));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto batch = x.size(0), time = x.size(1);
    std::vector<at::Tensor> parts;
    if (wqkv)
      parts = wqkv(x).split_with_sizes({x.size(2), kv_size, kv_size}, -1);
    else
      parts = {wq(x), wk(x), wv(x)};
    for (auto& part : parts) part = part.reshape({batch, time, -1, head_size}).transpose(1, 2);
    if (llama) parts[0] = rotary(parts[0]), parts[1] = rotary(parts[1]);
    const auto mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true, std::nullopt, llama);
    return wo(mixed.transpose(1, 2).reshape({batch, time, -1}));
  }
  bool llama;
  std::int64_t head_size, kv_size;
  torch::nn::Linear wqkv{nullptr}, wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
};
TORCH_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  explicit FeedForwardImpl(const ModelOptions& options) : llama(options.llama) {
    if (!llama)
      up = register_module("up", projection(options.hidden, options.feed_forward, true));
    else if (options.packed)
      gate_up = register_module("gate_up", projection(options.hidden, 2 * options.feed_forward));
    else {
      gate = register_module("gate", projection(options.hidden, options.feed_forward));
      up = register_module("up", projection(options.hidden, options.feed_forward));
    }
    down = register_module("down", projection(options.feed_forward, options.hidden, !llama));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (!llama) return down(at::gelu(up(x)));
    if (!gate_up) return down(at::silu(gate(x)) * up(x));
    const auto halves = gate_up(x).chunk(2, -1);
    return down(at::silu(halves[0]) * halves[1]);
  }
  bool llama;
  torch::nn::Linear gate_up{nullptr}, gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(FeedForward);

struct TransformerBlockImpl : torch::nn::Module {
  explicit TransformerBlockImpl(const ModelOptions& options)
      : n1(register_module("n1", Norm(options))),
        attn(register_module("attn", Attention(options))),
        n2(register_module("n2", Norm(options))),
        mlp(register_module("mlp", FeedForward(options))) {}
  at::Tensor forward(at::Tensor x) {
    x = x + attn(n1(x));
    return x + mlp(n2(x));
  }
  Norm n1;
  Attention attn;
  Norm n2;
  FeedForward mlp;
};
TORCH_MODULE(TransformerBlock);

// A Linear whose weight is a parameter of another module too.
struct TiedLinearImpl : torch::nn::LinearImpl {
  explicit TiedLinearImpl(const at::Tensor& shared)
      : LinearImpl(torch::nn::LinearOptions(shared.size(1), shared.size(0)).bias(false)) {
    weight = parameters_["weight"] = shared;
  }
};

// tokens [batch, time] -> logits [batch, time, vocabulary]
struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(const ModelOptions& options)
      : tok(register_module("tok", torch::nn::Embedding(options.vocabulary, options.hidden))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", Norm(options))) {
    if (!options.llama) pos = register_module("pos", torch::nn::Embedding(options.sequence, options.hidden));
    for (std::int64_t i = 0; i < options.layers; ++i) blocks->push_back(TransformerBlock(options));
    to(at::kDouble);
    head = options.tied ? std::make_shared<TiedLinearImpl>(tok->weight)
                        : projection(options.hidden, options.vocabulary).ptr();
    head->to(at::kDouble);
    register_module("head", head);
    const torch::NoGradGuard no_grad;
    int seed = 0;
    for (auto& p : named_parameters()) {  // by name, so that further layers change nothing in the first
      seed = seed * 31 % 1009 + static_cast<int>(p.key().size());
      const auto scale = p.value().dim() == 1 ? 0.1 : 0.5 / std::sqrt(static_cast<double>(p.value().size(1)));
      p.value().copy_(values(p.value().sizes(), seed) * scale + (p.value().dim() == 1 ? 1.0 : 0.0));
    }
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = tok(tokens);
    if (pos) x = x + pos(at::arange(tokens.size(1), at::kLong));
    for (const auto& block : *blocks) x = block->as<TransformerBlock>()->forward(x);
    return head->forward(norm(x));
  }
  torch::nn::Embedding tok, pos{nullptr};
  torch::nn::ModuleList blocks;
  Norm norm;
  std::shared_ptr<torch::nn::LinearImpl> head;
};
TORCH_MODULE(LanguageModel);

// With sequence parallel the residual stream is cut over time; with loss parallel the logits stay cut over the vocabulary.
inline ParallelPlan plan_of(const ModelOptions& options, bool sequence_parallel, bool loss_parallel) {
  const std::optional<Placement> stream =
      sequence_parallel ? std::optional<Placement>(Shard(1)) : std::nullopt;
  const std::optional<Placement> logits = loss_parallel ? std::nullopt : std::optional<Placement>(Replicate());
  const auto kv = options.hidden / options.heads * options.kv_heads;
  ParallelPlan plan;
  plan.rules = {{"tok", EmbeddingRowwise(stream)},
                {"blocks.*.attn.wo", RowwiseParallel({}, stream)},
                {"blocks.*.mlp.down", RowwiseParallel({}, stream)},
                {"head", ColwiseParallel({}, logits)}};
  const auto add = [&](std::string match, Style style) { plan.rules.push_back({std::move(match), std::move(style)}); };
  if (options.packed) {
    add("blocks.*.attn.wqkv", PackedColwise({options.hidden, kv, kv}));
  } else {
    add("blocks.*.attn.wq", ColwiseParallel());
    auto shared = ColwiseParallel();
    shared.kv_heads = options.kv_heads;
    shared.share_kv_heads = true;
    add("blocks.*.attn.{wk,wv}", shared);
  }
  if (options.packed && options.llama)
    add("blocks.*.mlp.gate_up", PackedColwise());
  else
    add(options.llama ? "blocks.*.mlp.{gate,up}" : "blocks.*.mlp.up", ColwiseParallel());
  if (sequence_parallel)
    add(options.llama ? "**.rms" : "**.layer", SequenceParallel());
  return plan;
}

struct TokenBatch {
  at::Tensor inputs, targets;  // [batch, time]
};
inline TokenBatch token_batch(std::int64_t batch, std::int64_t time, std::int64_t vocabulary, int step = 0) {
  const auto all = (at::arange(batch * (time + 1), at::kLong) * 7 + step * 5).remainder(vocabulary).view({batch, time + 1});
  return {all.slice(1, 0, time).contiguous(), all.slice(1, 1, time + 1).contiguous()};
}

inline at::Tensor loss_of(LanguageModel& model, const TokenBatch& batch) {
  const auto logits = model(batch.inputs);
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), batch.targets.reshape({-1}));
}

}  // namespace dtensor::testing
