// LibTorch's own modules and containers, parallelised: forward, gradients and buffers as on one device, on a mesh of two by
// two ranks with the batch cut over the first dimension; or refused by name.
#include <parallelize/all.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

using namespace dtensor;
using namespace dtensor::testing;
namespace nn = torch::nn;

namespace {

// Any module by its forward.
struct Subject {
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};
struct Case {
  std::string name;
  std::function<Subject()> make;
  at::Tensor input;
  std::vector<PlanRule> rules = {};
  std::int64_t batch_dim = 0;
};

// A module whose forward takes a tensor and gives one.
template <typename Holder, typename Options>
std::function<Subject()> simple(Options options) {
  return [options] {
    auto holder = std::make_shared<Holder>(options);
    return Subject{holder->ptr(), [holder](const at::Tensor& x) { return holder->get()->forward(x); }};
  };
}
// One of several results.
template <typename Holder, typename Options, typename Run>
std::function<Subject()> with(Options options, Run run) {
  return [options, run] {
    auto holder = std::make_shared<Holder>(options);
    return Subject{holder->ptr(), [holder, run](const at::Tensor& x) { return run(*holder->get(), x); }};
  };
}

at::Tensor indices(std::vector<std::int64_t> sizes, std::int64_t limit) {
  return (at::arange(c10::multiply_integers(sizes), at::kLong) * 7).remainder(limit).view(sizes);
}

// Own parameters, a tied one, a buffer, a parameter list and dictionary, and nested containers.
struct HomemadeImpl : nn::Module {
  HomemadeImpl() {
    scale = register_parameter("scale", at::ones({6}));
    offset = register_buffer("offset", at::arange(6, at::kDouble));
    counter = register_buffer("counter", at::zeros({}, at::kLong));
    list = register_module("list", nn::ParameterList());
    for (int i = 0; i < 2; ++i) list->append(at::ones({6, 6}));
    named = register_module("named", nn::ParameterDict());
    named->insert("gain", at::ones({6}));
    layers = register_module("layers", nn::ModuleDict());
    layers->update({{"first", nn::Linear(6, 8).ptr()}, {"second", nn::Linear(8, 6).ptr()}});
    stack = register_module("stack", nn::ModuleList(nn::Sequential(nn::Linear(6, 6), nn::ReLU()), nn::Linear(6, 6)));
    any = nn::AnyModule(nn::Linear(6, 6));
    register_module("any", any.ptr());
  }
  at::Tensor forward(const at::Tensor& input) {
    counter += 1;
    at::Tensor x = input * scale + offset;
    for (const auto& p : list->parameters(false)) x = at::matmul(x, p).tanh();
    x = x * named->get("gain");
    x = layers["second"]->as<nn::Linear>()->forward(at::gelu(layers["first"]->as<nn::Linear>()->forward(x)));
    x = stack[0]->as<nn::Sequential>()->forward(x);
    x = stack[1]->as<nn::Linear>()->forward(x);
    return any.forward<at::Tensor>(x) + at::matmul(x, list->parameters(false)[0]);  // used twice
  }
  at::Tensor scale, offset, counter;
  nn::ParameterList list;
  nn::ParameterDict named;
  nn::ModuleDict layers;
  nn::ModuleList stack;
  nn::AnyModule any;
};
TORCH_MODULE(Homemade);

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"Linear, replicated", simple<nn::Linear>(nn::LinearOptions(6, 4)), values({4, 6})});
  all.push_back({"Bilinear", with<nn::Bilinear>(nn::BilinearOptions(3, 3, 4),
                                                [](nn::BilinearImpl& m, const at::Tensor& x) {
                                                  return m.forward(x.slice(1, 0, 3), x.slice(1, 3, 6));
                                                }),
                 values({4, 6})});
  all.push_back({"Embedding with padding", simple<nn::Embedding>(nn::EmbeddingOptions(11, 4).padding_idx(3)), indices({4, 5}, 11),
                 {{"m", EmbeddingRowwise()}}});
  for (const bool mean : {false, true}) {
    auto options = nn::EmbeddingBagOptions(11, 4);
    mean ? options.mode(torch::kMean) : options.mode(torch::kSum);
    all.push_back({fmt::format("EmbeddingBag, mean {}", mean),
                   with<nn::EmbeddingBag>(options, [](nn::EmbeddingBagImpl& m, const at::Tensor& x) { return m.forward(x); }),
                   indices({4, 5}, 11)});
  }
  all.push_back({"Conv1d", simple<nn::Conv1d>(nn::Conv1dOptions(3, 4, 3).padding(1)), values({4, 3, 7})});
  all.push_back({"Conv2d", simple<nn::Conv2d>(nn::Conv2dOptions(2, 4, 3).stride(2).groups(2)), values({4, 2, 7, 6})});
  all.push_back({"Conv3d", simple<nn::Conv3d>(nn::Conv3dOptions(2, 3, 2).padding(1)), values({4, 2, 3, 4, 3})});
  all.push_back({"LayerNorm", simple<nn::LayerNorm>(nn::LayerNormOptions({6})), values({4, 5, 6}), {{"m", SequenceParallel()}}});
  all.push_back({"GroupNorm", simple<nn::GroupNorm>(nn::GroupNormOptions(2, 6)), values({4, 6, 5})});
  all.push_back({"BatchNorm1d", simple<nn::BatchNorm1d>(nn::BatchNormOptions(6)), values({4, 6, 5})});
  all.push_back({"InstanceNorm1d", simple<nn::InstanceNorm1d>(nn::InstanceNormOptions(6).affine(true)), values({4, 6, 5})});
  const auto attention = [](nn::MultiheadAttentionImpl& m, const at::Tensor& x) {
    return std::get<0>(m.forward(x, x, x, {}, false));
  };
  all.push_back({"MultiheadAttention", with<nn::MultiheadAttention>(nn::MultiheadAttentionOptions(8, 2), attention),
                 values({5, 4, 8}), {}, 1});
  all.push_back({"MultiheadAttention, output projection cut",
                 with<nn::MultiheadAttention>(nn::MultiheadAttentionOptions(8, 2), attention), values({5, 4, 8}),
                 {{"m.out_proj", RowwiseParallel(Replicate())}}, 1});
  all.push_back({"MultiheadAttention, sizes of their own",
                 with<nn::MultiheadAttention>(nn::MultiheadAttentionOptions(8, 2).kdim(6).vdim(6),
                                              [](nn::MultiheadAttentionImpl& m, const at::Tensor& x) {
                                                return std::get<0>(m.forward(x, x.slice(2, 0, 6), x.slice(2, 2, 8), {}, false));
                                              }),
                 values({5, 4, 8}), {}, 1});
  const std::vector<PlanRule> feed_forward = {{"**.linear1", ColwiseParallel()},
                                              {"**.linear2", RowwiseParallel()},
                                              {"**.{self_attn,multihead_attn}.out_proj", ReplicateParallel()}};
  const auto encoder_layer = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  all.push_back({"TransformerEncoder",
                 with<nn::TransformerEncoder>(nn::TransformerEncoderOptions(encoder_layer, 2),
                                              [](nn::TransformerEncoderImpl& m, const at::Tensor& x) { return m.forward(x); }),
                 values({5, 4, 8}), feed_forward, 1});
  const auto decoder_layer = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  all.push_back({"TransformerDecoder",
                 with<nn::TransformerDecoder>(
                     nn::TransformerDecoderOptions(decoder_layer, 2),
                     [](nn::TransformerDecoderImpl& m, const at::Tensor& x) { return m.forward(x, x.flip(0)); }),
                 values({5, 4, 8}), feed_forward, 1});
  const auto first = [](auto& m, const at::Tensor& x) { return std::get<0>(m.forward(x)); };
  all.push_back({"RNN", with<nn::RNN>(nn::RNNOptions(5, 6).num_layers(2), first), values({3, 4, 5}), {}, 1});
  all.push_back({"LSTM", with<nn::LSTM>(nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true), first), values({3, 4, 5}), {}, 1});
  all.push_back({"GRU", with<nn::GRU>(nn::GRUOptions(5, 6), first), values({3, 4, 5}), {}, 1});
  all.push_back({"containers and tensors of the user's own",
                 [] {
                   auto holder = std::make_shared<Homemade>();
                   return Subject{holder->ptr(), [holder](const at::Tensor& x) { return (*holder)->forward(x); }};
                 },
                 values({4, 6}),
                 {{"m.layers.first", ColwiseParallel()},
                  {"m.layers.second", RowwiseParallel()},
                  {"m.stack.0.0", ColwiseParallel()},
                  {"m.stack.1", RowwiseParallel()},
                  {"m.any", ColwiseParallel({}, Replicate())}}});
  return all;
}

// The subject as child "m" of a root, in float64 with values of its own.
struct Root : nn::Module {
  explicit Root(const Subject& made) : subject(made) {
    register_module("m", subject.module);
    to(at::kDouble, true);
    const torch::NoGradGuard no_grad;
    int seed = 0;
    for (auto& p : parameters()) p.copy_(values(p.sizes(), seed++) * 0.4);
  }
  Subject subject;
};

void check_case(const Case& c) {
  Root net(c.make()), reference(c.make());
  const auto mesh = grid(2, 2);
  ParallelPlan plan;
  plan.rules = c.rules;
  plan.data_parallel = DataParallel{};
  parallelize_module(net, mesh, plan);
  for (const auto& p : net.parameters()) check(is_dtensor(p), "every parameter is distributed");
  for (int step = 0; step < 2; ++step) {
    auto x = place(c.input, mesh, {Shard(c.batch_dim), Replicate()});
    at::Tensor full = c.input.clone();
    if (full.is_floating_point()) {
      x.set_requires_grad(true);
      full.set_requires_grad(true);
    }
    const auto y = net.subject.forward(x), expected = reference.subject.forward(full);
    check_close(y, expected, "output", 1e-10);
    const auto weights = values(expected.sizes(), 3);
    (y * place(weights, mesh, {Replicate(), Replicate()})).sum().backward();
    (expected * weights).sum().backward();
    if (full.is_floating_point()) check_close(x.grad(), full.grad(), "gradient of the input", 1e-10);
  }
  const auto parameters = reference.named_parameters();
  for (const auto& p : net.named_parameters()) {
    const auto& wanted = parameters[p.key()].grad();
    check(p.value().grad().defined() == wanted.defined(), p.key() + ": whether there is a gradient");
    if (!wanted.defined()) continue;
    check_close(p.value().grad(), wanted, "gradient of " + p.key(), 1e-10);
    check_placed(p.value().grad(), as_dtensor(p.value()).placements(), "gradient of " + p.key());
  }
  const auto buffers = reference.named_buffers();
  for (const auto& b : net.named_buffers()) check_close(b.value(), buffers[b.key()], "buffer " + b.key(), 1e-10);
  const auto twice = refusal_of<PlanError>([&] { parallelize_module(net, mesh, plan); }, "applied twice");
  check_contains(twice, "parallelised before");
  unparallelize(net);
  check_close(net.subject.forward(c.input), reference.subject.forward(c.input), "plain again", 1e-10);
}

}  // namespace

TEST_CASE("stock modules and containers equal the plain ones") {
  for (const auto& c : cases()) {
    INFO(c.name);
    const auto run = [&] { run_ranks(4, [&](int) { check_case(c); }); };
    CHECK_NOTHROW(run());
  }
}
