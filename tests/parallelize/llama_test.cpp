// A Llama-like block of the user's own modules (RMS norm, rotary positions, grouped heads made equal, SwiGLU) under
// tensor and sequence parallel: forward and backward as plain LibTorch, without a fallback.
#include <dtensor/all.h>
#include <parallelize/all.h>

#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <mutex>
#include <stdexcept>
#include <string>

using namespace dtensor;

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(std::int64_t size) : weight(register_parameter("weight", torch::ones({size}))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::rms_norm(x, weight.sizes(), weight, 1e-6); }
  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

torch::nn::Linear projection(std::int64_t from, std::int64_t to) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
}

// Rotates pairs of the last dimension by angles that grow with the position (Su et al., RoFormer, 2021).
at::Tensor rotary(const at::Tensor& x) {
  const auto time = x.size(2), half = x.size(3) / 2;
  const auto options = torch::TensorOptions().dtype(torch::kDouble);
  const auto angles =
      torch::outer(torch::arange(time, options), torch::pow(10000.0, -torch::arange(half, options) / half));
  const auto cosine = angles.cos(), sine = angles.sin();
  const auto a = x.slice(3, 0, half), b = x.slice(3, half, 2 * half);
  return torch::cat({a * cosine - b * sine, a * sine + b * cosine}, 3);
}

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : n1(register_module("n1", RmsNorm(16))),
        n2(register_module("n2", RmsNorm(16))),
        wq(register_module("wq", projection(16, 16))),
        wk(register_module("wk", projection(16, 16))),
        wv(register_module("wv", projection(16, 16))),
        wo(register_module("wo", projection(16, 16))),
        w1(register_module("w1", projection(16, 24))),
        w2(register_module("w2", projection(24, 16))),
        w3(register_module("w3", projection(16, 24))) {}
  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0), time = x.size(1);
    const auto h = n1(x);
    const auto heads = [&](const at::Tensor& y) { return y.view({batch, time, -1, 4}).transpose(1, 2); };
    const auto mixed = torch::scaled_dot_product_attention(rotary(heads(wq(h))), rotary(heads(wk(h))),
                                                           heads(wv(h)), {}, 0.0, true);
    x = x + wo(mixed.transpose(1, 2).reshape({batch, time, -1}));
    const auto g = n2(x);
    return x + w2(torch::silu(w1(g)) * w3(g));
  }
  RmsNorm n1, n2;
  torch::nn::Linear wq, wk, wv, wo, w1, w2, w3;
};
TORCH_MODULE(Block);

Block build() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(8);
  Block block;
  block->to(torch::kDouble);
  return block;
}

}  // namespace

TEST_CASE("a Llama-like block under tensor and sequence parallel equals the plain one") {
  for (const bool sequence_parallel : {false, true})
    for (const int dp : {1, 2})
      run_ranks(2 * dp, [&](int) {
        const auto mesh = init_device_mesh(torch::kCPU, {dp, 2}, {"dp", "tp"});
        ParallelPlan plan;
        const std::optional<Placement> out =
            sequence_parallel ? std::optional<Placement>(Shard(1)) : std::nullopt;
        plan.rules = {{"{wq,wk,wv,w1,w3}", ColwiseParallel()}, {"{wo,w2}", RowwiseParallel({}, out)}};
        if (sequence_parallel) plan.rules.push_back({"{n1,n2}", SequenceParallel()});
        plan.data_parallel = DataParallel{};
        plan.policy = Policy{Fallback::error, ImplicitMoves::allow, PlainTensors::replicate_checked};
        auto model = build(), reference = build();
        parallelize_module(*model, mesh, plan);
        const auto input = torch::arange(4 * 6 * 16, torch::kDouble).view({4, 6, 16}).sin();
        const Placement sequence = sequence_parallel ? Shard(1) : Replicate();
        auto x = distribute_tensor(input, mesh, {Shard(0), sequence}, {.source = std::nullopt});
        x.set_requires_grad(true);
        auto plain = input.clone().set_requires_grad(true);
        const CollectiveCounter counter;
        const auto y = model(x), expected = reference(plain);
        expect(torch::allclose(as_dtensor(y.detach()).full_tensor(), expected, 1e-10, 1e-12),
               "values differ");
        expect(counter.count(Collective::all_gather, "tp", "wish") == (sequence_parallel ? 2 : 0),
               counter.to_string());
        y.pow(2).mean().backward();
        expected.pow(2).mean().backward();
        expect(torch::allclose(as_dtensor(x.grad()).full_tensor(), plain.grad(), 1e-9, 1e-12),
               "input gradients differ");
        const auto parameters = model->named_parameters();
        for (const auto& item : reference->named_parameters())
          expect(torch::allclose(as_dtensor(parameters[item.key()].grad()).full_tensor(), item.value().grad(),
                                 1e-9, 1e-12),
                 item.key() + ": gradients differ");
      });
}
