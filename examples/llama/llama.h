// A small Llama with Hugging Face's module names, so that a tp_plan of that library fits as it is. Plain LibTorch and
// nothing else: RMS norm, rotary positions, grouped-query attention, SwiGLU.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace llama {

struct Options {
  std::int64_t vocabulary = 64, hidden = 32, heads = 4, kv_heads = 2, intermediate = 48, layers = 2;
};

inline torch::nn::Linear projection(std::int64_t from, std::int64_t to) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
}

struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(std::int64_t size) : weight(register_parameter("weight", torch::ones({size}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::rms_norm(x, weight.sizes(), weight, 1e-6); }
  torch::Tensor weight;
};
TORCH_MODULE(RmsNorm);

// Rotates pairs of the last dimension of [batch, heads, time, size] by angles that grow with the position (RoFormer).
inline torch::Tensor rotary(const torch::Tensor& x) {
  const auto half = x.size(3) / 2;
  const auto angles = torch::outer(torch::arange(x.size(2), x.options()),
                                   torch::pow(10000.0, -torch::arange(half, x.options()) / half));
  const auto a = x.slice(3, 0, half), b = x.slice(3, half);
  return torch::cat({a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()}, 3);
}

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Options& options)
      : size(options.hidden / options.heads),
        q_proj(register_module("q_proj", projection(options.hidden, options.hidden))),
        k_proj(register_module("k_proj", projection(options.hidden, size * options.kv_heads))),
        v_proj(register_module("v_proj", projection(options.hidden, size * options.kv_heads))),
        o_proj(register_module("o_proj", projection(options.hidden, options.hidden))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto batch = x.size(0), time = x.size(1);
    // -1: the number of heads. Sizes are global ones, whatever part of the heads a rank holds.
    const auto heads = [&](const torch::Tensor& y) { return y.view({batch, time, -1, size}).transpose(1, 2); };
    const auto mixed = torch::scaled_dot_product_attention(rotary(heads(q_proj(x))), rotary(heads(k_proj(x))),
                                                           heads(v_proj(x)), {}, 0.0, /*is_causal=*/true, std::nullopt,
                                                           /*enable_gqa=*/true);
    return o_proj(mixed.transpose(1, 2).reshape({batch, time, -1}));
  }
  std::int64_t size;
  torch::nn::Linear q_proj, k_proj, v_proj, o_proj;
};
TORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const Options& options)
      : gate_proj(register_module("gate_proj", projection(options.hidden, options.intermediate))),
        up_proj(register_module("up_proj", projection(options.hidden, options.intermediate))),
        down_proj(register_module("down_proj", projection(options.intermediate, options.hidden))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down_proj(torch::silu(gate_proj(x)) * up_proj(x)); }
  torch::nn::Linear gate_proj, up_proj, down_proj;
};
TORCH_MODULE(Mlp);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Options& options)
      : input_layernorm(register_module("input_layernorm", RmsNorm(options.hidden))),
        self_attn(register_module("self_attn", Attention(options))),
        post_attention_layernorm(register_module("post_attention_layernorm", RmsNorm(options.hidden))),
        mlp(register_module("mlp", Mlp(options))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + self_attn(input_layernorm(x));
    return x + mlp(post_attention_layernorm(x));
  }
  RmsNorm input_layernorm;
  Attention self_attn;
  RmsNorm post_attention_layernorm;
  Mlp mlp;
};
TORCH_MODULE(Layer);

struct BodyImpl : torch::nn::Module {
  explicit BodyImpl(const Options& options)
      : embed_tokens(register_module("embed_tokens", torch::nn::Embedding(options.vocabulary, options.hidden))),
        layers(register_module("layers", torch::nn::ModuleList())),
        norm(register_module("norm", RmsNorm(options.hidden))) {
    for (std::int64_t i = 0; i < options.layers; ++i) layers->push_back(Layer(options));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embed_tokens(tokens);
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return norm(x);
  }
  torch::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  RmsNorm norm;
};
TORCH_MODULE(Body);

// tokens (batch, time), int64 -> logits (batch, time, vocabulary)
struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const Options& options)
      : model(register_module("model", Body(options))),
        lm_head(register_module("lm_head", projection(options.hidden, options.vocabulary))) {}
  torch::Tensor forward(const torch::Tensor& tokens) { return lm_head(model(tokens)); }
  Body model;
  torch::nn::Linear lm_head;
};
TORCH_MODULE(Llama);

}  // namespace llama
