// Decoding with a growing key-value cache in inference mode: one attention step per token, plain LibTorch against DTensors of
// a mesh of one rank, and the decisions that had to be made after the first tokens.
//
// One JSON line: {"bench": "decode", "case", "plain_ns", "here_ns", "misses_after_4_tokens"}; times per token.
#include "command_line.h"
#include "measure.h"

#include <dtensor/all.h>
#include <dtensor/decision_cache.h>
#include <torch/torch.h>

using namespace dtensor;

namespace {

constexpr std::int64_t batch = 1, heads = 8, width = 64, tokens = 128, hidden = heads * width;

// One layer of a decoder: projections, the cache grown by one token, attention to all so far, a feed-forward block.
struct Decoder {
  at::Tensor x, projection, output, up, down, scale, keys, values;

  explicit Decoder(const std::function<at::Tensor(const at::Tensor&, std::int64_t)>& place) {
    torch::manual_seed(0);
    x = place(torch::randn({batch, 1, hidden}), -1);
    projection = place(torch::randn({3 * hidden, hidden}) * 0.02, -1);
    output = place(torch::randn({hidden, hidden}) * 0.02, -1);
    up = place(torch::randn({4 * hidden, hidden}) * 0.02, -1);
    down = place(torch::randn({hidden, 4 * hidden}) * 0.02, -1);
    scale = place(torch::ones({hidden}), -1);
    keys = place(torch::zeros({batch, heads, tokens + 1, width}), 1);
    values = place(torch::zeros({batch, heads, tokens + 1, width}), 1);
  }
  at::Tensor step(std::int64_t token) {
    const auto normed = at::layer_norm(x, {hidden}, scale);
    const auto split = at::linear(normed, projection).view({batch, 1, 3, heads, width}).unbind(2);
    keys.narrow(2, token, 1).copy_(split[1].transpose(1, 2));
    values.narrow(2, token, 1).copy_(split[2].transpose(1, 2));
    const auto attended = at::scaled_dot_product_attention(split[0].transpose(1, 2), keys.narrow(2, 0, token + 1),
                                                           values.narrow(2, 0, token + 1));
    const auto y = x + at::linear(attended.transpose(1, 2).reshape({batch, 1, hidden}), output);
    return y + at::linear(at::gelu(at::linear(y, up)), down);
  }
  double decode(std::int64_t first) {  // nanoseconds per token
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t token = first; token < tokens; ++token) step(token);
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
           static_cast<double>(tokens - first);
  }
};

}  // namespace

int main(int argument_count, char** arguments) {
  bench::CommandLine options("A decoding step with a growing key-value cache");
  int rounds = 5;
  options.number("--rounds", rounds, "rounds; the figure is their median");
  options.parse(argument_count, arguments);
  at::set_num_threads(1);
  init();
  {
    const c10::InferenceMode inference;
    const auto mesh = init_device_mesh(c10::DeviceType::CPU, {1}, {"tp"});
    Decoder plain([](const at::Tensor& tensor, std::int64_t) { return tensor; });
    Decoder here([&](const at::Tensor& tensor, std::int64_t dim) -> at::Tensor {
      return distribute_tensor(tensor, mesh, {dim < 0 ? Placement(Replicate()) : Placement(Shard(dim))});
    });
    for (std::int64_t token = 0; token < 4; ++token) here.step(token);
    const auto before = DecisionCache::instance().statistics().misses;
    here.decode(4);
    const auto misses = DecisionCache::instance().statistics().misses - before;
    plain.decode(0);
    std::vector<double> plain_ns, here_ns;
    for (int round = 0; round < rounds; ++round) {
      plain_ns.push_back(plain.decode(0));
      here_ns.push_back(here.decode(0));
    }
    bench::print_line("decode", "one layer of 512, 8 heads, 128 tokens",
                      {{"plain_ns", bench::median(plain_ns)},
                       {"here_ns", bench::median(here_ns)},
                       {"misses_after_4_tokens", static_cast<double>(misses)}});
  }
  shutdown();
}
