// A small GPT on bytes. Plain LibTorch and nothing else: tensor and data parallelism come from a plan (../plans), not
// from this file. What that asks of a model is good style anyway: sizes are read from tensors, and the number of heads
// is inferred (-1) where a rank may hold only some of them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

namespace train_gpt {

struct GPTOptions {
  std::int64_t vocabulary = 256;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  std::int64_t sequence = 64;  // longest input
  double dropout = 0;
  bool attention_bias = false;
};

// Causal self-attention. (batch, time, hidden) -> the same.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const GPTOptions& options)
      : wq(register_module("wq", projection(options))),
        wk(register_module("wk", projection(options))),
        wv(register_module("wv", projection(options))),
        wo(register_module("wo", projection(options))),
        head_dim(options.hidden / options.heads),
        dropout(options.dropout) {
    TORCH_CHECK_VALUE(options.hidden % options.heads == 0, "hidden (", options.hidden,
                      ") must be a multiple of heads (", options.heads, ")");
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto batch = x.size(0), time = x.size(1);
    const auto by_head = [&](const torch::Tensor& flat) {
      return flat.view({batch, time, -1, head_dim}).transpose(1, 2);
    };
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        by_head(wq(x)), by_head(wk(x)), by_head(wv(x)), /*attn_mask=*/{}, is_training() ? dropout : 0.0,
        /*is_causal=*/true);
    return wo(mixed.transpose(1, 2).reshape({batch, time, -1}));
  }

  torch::nn::Linear wq, wk, wv, wo;
  std::int64_t head_dim;
  double dropout;

 private:
  static torch::nn::Linear projection(const GPTOptions& options) {
    return torch::nn::Linear(
        torch::nn::LinearOptions(options.hidden, options.hidden).bias(options.attention_bias));
  }
};
TORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const GPTOptions& options)
      : w1(register_module("w1", torch::nn::Linear(options.hidden, 4 * options.hidden))),
        w2(register_module("w2", torch::nn::Linear(4 * options.hidden, options.hidden))) {}

  torch::Tensor forward(const torch::Tensor& x) { return w2(torch::gelu(w1(x))); }

  torch::nn::Linear w1, w2;
};
TORCH_MODULE(Mlp);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GPTOptions& options)
      : n1(register_module("n1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden})))),
        attn(register_module("attn", Attention(options))),
        n2(register_module("n2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden})))),
        mlp(register_module("mlp", Mlp(options))),
        dropout(options.dropout) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + torch::dropout(attn(n1(x)), dropout, is_training());
    return x + torch::dropout(mlp(n2(x)), dropout, is_training());
  }

  torch::nn::LayerNorm n1;
  Attention attn;
  torch::nn::LayerNorm n2;
  Mlp mlp;
  double dropout;
};
TORCH_MODULE(Block);

// tokens (batch, time), int64 -> logits (batch, time, vocabulary). time <= options.sequence.
struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const GPTOptions& options)
      : tok(register_module("tok", torch::nn::Embedding(options.vocabulary, options.hidden))),
        pos(register_module("pos", torch::nn::Embedding(options.sequence, options.hidden))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden})))),
        head(register_module(
            "head",
            torch::nn::Linear(torch::nn::LinearOptions(options.hidden, options.vocabulary).bias(false)))) {
    for (std::int64_t i = 0; i < options.layers; ++i) blocks->push_back(Block(options));
    // Embeddings of standard deviation 1, LibTorch's default, drown what the first layers add.
    torch::nn::init::normal_(tok->weight, 0.0, 0.02);
    torch::nn::init::normal_(pos->weight, 0.0, 0.02);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = tok(tokens) + pos(torch::arange(tokens.size(1), tokens.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(norm(x));
  }

  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(GPT);

}  // namespace train_gpt
