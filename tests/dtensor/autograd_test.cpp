// Stock LibTorch programs on DTensors: results and gradients equal those of plain tensors, for every placement of the
// inputs (DESIGN 4.2, trap 7).
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

using Tensors = std::vector<at::Tensor>;
using Make =
    std::function<at::Tensor(const at::Tensor&)>;  // what a program makes itself: replicated, or plain
struct Program {
  const char* name;
  std::vector<std::vector<std::int64_t>> shapes;
  std::function<Tensors(Tensors, Make)> run;
};

Tensors gradients(const Tensors& inputs, const at::Tensor& result) {
  result.sum().backward();
  Tensors all;
  for (const auto& x : inputs) all.push_back(x.grad());
  all.push_back(result.detach());
  return all;
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& a,
                            const at::Tensor& b) {
    context->save_for_backward({a, b});
    return a * b;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors g) {
    const auto saved = context->get_saved_variables();
    return {g[0] * saved[1], g[0] * saved[0]};
  }
};
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor a) {
    a.mul_(2);
    context->mark_dirty({a});
    return a;
  }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors g) { return {g[0] * 2}; }
};
// Recomputes in backward, as activation checkpoints do.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& a,
                            const at::Tensor& b) {
    context->save_for_backward({a, b});
    const torch::NoGradGuard no_grad;
    return a.mm(b).relu();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors g) {
    const auto saved = context->get_saved_variables();
    const torch::AutoGradMode with_grad(true);
    const auto a = saved[0].detach().requires_grad_(), b = saved[1].detach().requires_grad_();
    torch::autograd::backward({a.mm(b).relu()}, {g[0]});
    return {a.grad(), b.grad()};
  }
};

// The gradient's own gradient, for a function of all inputs.
Tensors twice(const Tensors& x, const at::Tensor& result) {
  Tensors inputs(x.begin(), x.end());
  auto first = torch::autograd::grad({result.sum()}, inputs, {}, true, true, true);
  at::Tensor total;
  for (const auto& g : first)
    if (g.defined()) total = total.defined() ? total + g.pow(2).sum() : g.pow(2).sum();
  total.backward();
  Tensors all;
  for (const auto& t : x) all.push_back(t.grad());
  for (const auto& g : first) all.push_back(g.defined() ? g.detach() : g);
  return all;
}

void check_programs(const std::vector<Program>& programs, int ranks, double tolerance = 1e-6) {
  run_ranks(ranks, [&](int) {
    const PolicyGuard quiet({Fallback::allow, ImplicitMoves::allow, PlainTensors::error});
    const auto mesh = line(ranks);
    for (const auto& program : programs) {
      Tensors plain;
      int seed = 0;
      for (const auto& shape : program.shapes) plain.push_back(values(shape, seed++).set_requires_grad(true));
      const auto expected = program.run(plain, [](const at::Tensor& t) { return t; });
      for (const auto& placement : {Replicate(), Shard(0), Shard(1), Partial()}) {
        const auto text = fmt::format("{}, {} on {} ranks", program.name, placement.to_string(), ranks);
        Tensors inputs;
        for (const auto& t : plain) {
          const bool fits = !placement.is_shard() || placement.dim() < t.dim();
          inputs.push_back(leaf(t.detach().clone(), mesh, {fits ? placement : Shard(0)}));
        }
        Tensors actual;
        try {
          actual = program.run(inputs, [&](const at::Tensor& t) { return place(t, mesh, {Replicate()}); });
        } catch (const std::exception& error) {
          fail(text + ": " + std::string(error.what()).substr(0, 600), Location::current());
        }
        check(actual.size() == expected.size(), text);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          check(actual[i].defined() == expected[i].defined(), fmt::format("{}: result {} defined", text, i));
          if (!actual[i].defined()) continue;
          check(is_dtensor(actual[i]), fmt::format("{}: result {} is plain", text, i));
          check_close(actual[i], expected[i], fmt::format("{}: result {}", text, i), tolerance);
        }
      }
    }
  });
}

}  // namespace

TEST_CASE("autograd: accumulation, hooks, retain_grad, graphs used twice") {
  check_programs(
      {
          {"mm add",
           {{8, 4}, {4, 6}, {6}},
           [](Tensors x, Make) { return gradients(x, (x[0].mm(x[1]) + x[2]).pow(2)); }},
          {"accumulate three times",
           {{8, 4}, {4, 6}},
           [](Tensors x, Make) {
             for (int i = 0; i < 3; ++i) x[0].mm(x[1]).pow(2).sum().backward();
             return Tensors{x[0].grad(), x[1].grad()};
           }},
          {"accumulate a transposed gradient",
           {{8, 4}, {8, 6}},
           [](Tensors x, Make) {
             for (int i = 0; i < 2; ++i) x[0].t().mm(x[1]).pow(2).sum().backward();
             return Tensors{x[0].grad(), x[1].grad()};
           }},
          {"accumulate an expanded gradient",
           {{8, 4}},
           [](Tensors x, Make) {
             for (int i = 0; i < 2; ++i) x[0].sum().backward();
             return Tensors{x[0].grad()};
           }},
          {"gradient stolen, then written to",
           {{8, 4}},
           [](Tensors x, Make) {
             const auto root = x[0].detach().clone();
             (x[0] * 3).backward(root);
             x[0].mutable_grad().mul_(2);
             (x[0] * 3).backward(root);
             return Tensors{x[0].grad(), root};
           }},
          {"hooks and retain_grad",
           {{8, 4}},
           [](Tensors x, Make) {
             const auto h = x[0] * 2;
             h.retain_grad();
             int calls = 0;
             h.register_hook([&](const at::Tensor& g) {
               ++calls;
               return g * 3;
             });
             h.pow(2).sum().backward();
             check(calls == 1, "one call of the hook");
             return Tensors{x[0].grad(), h.grad()};
           }},
          {"retain_grad, then in place",
           {{8, 4}},
           [](Tensors x, Make) {
             auto h = x[0] * 2;
             h.retain_grad();
             h.mul_(3);
             h.pow(2).sum().backward();
             return Tensors{x[0].grad(), h.grad()};
           }},
          {"a leaf hook that replaces the gradient",
           {{8, 4}},
           [](Tensors x, Make) {
             x[0].register_hook([](const at::Tensor& g) { return g.clone() * 2; });
             return gradients(x, x[0].pow(3));
           }},
          {"backward twice through one graph",
           {{8, 4}},
           [](Tensors x, Make) {
             const auto y = x[0].pow(3).sum();
             y.backward({}, true);
             y.backward();
             return Tensors{x[0].grad()};
           }},
          {"backward with inputs",
           {{8, 4}, {8, 4}},
           [](Tensors x, Make) {
             (x[0] * x[1]).sum().backward({}, false, false, Tensors{x[0]});
             return Tensors{x[0].grad(), x[1].grad()};
           }},
          {"create_graph",
           {{8, 4}},
           [](Tensors x, Make) {
             x[0].pow(3).sum().backward({}, true, true);
             const auto first = x[0].grad();
             x[0].mutable_grad() = at::Tensor();
             first.sum().backward();
             return Tensors{x[0].grad(), first.detach()};
           }},
          {"grad with root gradients and an unused input",
           {{8, 4}, {3}},
           [](Tensors x, Make make) {
             return torch::autograd::grad({x[0] * 2}, {x[0], x[1]}, {make(at::ones({8, 4}, at::kDouble))},
                                          false, false, true);
           }},
          {"custom function",
           {{8, 4}, {8, 4}},
           [](Tensors x, Make) { return gradients(x, Product::apply(x[0], x[1]).pow(2)); }},
          {"recomputing function",
           {{8, 4}, {4, 6}},
           [](Tensors x, Make) { return gradients(x, Recomputed::apply(x[0], x[1]).pow(2)); }},
          {"detach_ and requires_grad_",
           {{8, 4}},
           [](Tensors x, Make) {
             auto h = x[0] * 2;
             const auto d = h.detach().clone().requires_grad_();
             d.pow(2).sum().backward();
             h.detach_();
             check(!h.requires_grad(), "detached");
             return Tensors{d.grad()};
           }},
          {"dtypes",
           {{8, 4}},
           [](Tensors x, Make) { return gradients(x, (x[0].to(at::kFloat).to(at::kDouble) * 2).pow(2)); }},
          {"in-place chain",
           {{8, 4}},
           [](Tensors x, Make) {
             auto h = x[0].abs();
             h.add_(x[0]).mul_(2).mul_(x[0].detach());
             return gradients(x, h.pow(2));
           }},
          {"custom function in place",
           {{8, 4}},
           [](Tensors x, Make) { return gradients(x, Doubled::apply(x[0] * 3).pow(2)); }},
      },
      2);
}

TEST_CASE("autograd: the operators of models") {
  check_programs(
      {
          {"linear, layer_norm, gelu",
           {{2, 4, 8}, {6, 8}, {6}, {6}},
           [](Tensors x, Make) {
             return gradients(x,
                              at::gelu(at::layer_norm(at::linear(x[0], x[1], x[2]), {6}, x[3], {})).pow(2));
           }},
          {"rms_norm",
           {{2, 4, 8}, {8}},
           [](Tensors x, Make) { return gradients(x, at::rms_norm(x[0], {8}, x[1]).pow(3)); }},
          {"attention",
           {{2, 2, 4, 8}, {2, 2, 4, 8}, {2, 2, 4, 8}},
           [](Tensors x, Make) {
             return gradients(x, at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true).pow(2));
           }},
          {"embedding",
           {{8, 6}},
           [](Tensors x, Make make) {
             return gradients(x, at::embedding(x[0], make(at::tensor({0, 1, 1, 7}, at::kLong)), 1).pow(2));
           }},
          {"cross entropy",
           {{8, 6}},
           [](Tensors x, Make make) {
             namespace F = torch::nn::functional;
             return gradients(
                 x, F::cross_entropy(x[0] * 2, make(at::tensor({0, 1, 2, 3, 4, 5, -100, 1}, at::kLong)),
                                     F::CrossEntropyFuncOptions().label_smoothing(0.1)));
           }},
          {"broadcasts",
           {{8, 1, 4}, {1, 6, 4}, {4}},
           [](Tensors x, Make) { return gradients(x, (x[0] * x[1] + x[2]).pow(2)); }},
          {"cat and stack",
           {{4, 6}, {4, 6}},
           [](Tensors x, Make) {
             return gradients(x,
                              at::cat({x[0], x[1]}, 1).pow(2).sum() + at::stack({x[0], x[1]}).pow(3).sum());
           }},
          {"split and chunk",
           {{8, 6}},
           [](Tensors x, Make) {
             const auto c = (x[0] * 2).chunk(2, 1), d = (x[0] * 3).split(4, 0);
             return gradients(x, (c[0] * c[1]).sum() + d[0].pow(2).sum() + (d[1] * 2).sum());
           }},
          {"index, gather, index_select",
           {{8, 6}},
           [](Tensors x, Make make) {
             const auto i = make(at::tensor({1, 3, 5}, at::kLong)), j = make(at::ones({8, 2}, at::kLong));
             return gradients(x, x[0].index({i}).pow(2).sum() + x[0].gather(1, j).pow(2).sum() +
                                     x[0].index_select(0, i).sum());
           }},
          {"where, masked_fill, clamp",
           {{8, 6}},
           [](Tensors x, Make) {
             return gradients(
                 x, at::where(x[0] > 0, x[0], x[0] * 0.1).masked_fill(x[0] < -1, 0).clamp(-2, 2).pow(2));
           }},
          {"einsum, bmm, matmul",
           {{2, 4, 6}, {2, 6, 4}},
           [](Tensors x, Make) {
             return gradients(x, at::einsum("bij,bjk->bik", {x[0], x[1]}).pow(2).sum() +
                                     x[0].matmul(x[1]).sum() + at::bmm(x[0], x[1]).pow(3).sum());
           }},
          {"views",
           {{4, 2, 6}},
           [](Tensors x, Make) {
             return gradients(x, x[0].permute({2, 0, 1}).flatten(1).pow(2).sum() +
                                     x[0].flatten(0, 1).unflatten(0, {2, 4}).pow(3).sum());
           }},
          {"a reshape that copies",
           {{8, 6}},
           [](Tensors x, Make) {
             return gradients(x, x[0].t().reshape({8, 6}).pow(2) + x[0].t().contiguous().view({8, 6}) * x[0]);
           }},
          {"norm, var, mean, std",
           {{8, 6}},
           [](Tensors x, Make) {
             return gradients(x, x[0].norm() + x[0].var(1).sum() + x[0].mean({0}).pow(2).sum() + x[0].std());
           }},
          {"softmax family",
           {{8, 6}},
           [](Tensors x, Make) {
             return gradients(x, x[0].softmax(1).pow(2).sum() + x[0].log_softmax(0).pow(2).sum() +
                                     x[0].logsumexp(1).sum());
           }},
          {"pad, roll, flip, tril, repeat",
           {{8, 6}},
           [](Tensors x, Make) {
             return gradients(x, at::constant_pad_nd(x[0], {1, 1}).pow(2).sum() +
                                     x[0].roll(2, 0).pow(2).sum() + x[0].flip({0}).tril().pow(3).sum() +
                                     x[0].repeat({2, 1}).pow(2).sum());
           }},
          {"cumsum, prod",
           {{8, 6}},
           [](Tensors x, Make) { return gradients(x, x[0].cumsum(0).pow(2).sum() + x[0].prod(1).sum()); }},
          {"_foreach_mul",
           {{8, 4}, {4, 4}},
           [](Tensors x, Make) {
             const auto y = at::_foreach_mul({x[0], x[1]}, 2.0);
             return gradients(x, y[0].pow(2).sum() + y[1].pow(2).sum());
           }},
          {"conv2d, batch_norm",
           {{2, 4, 6, 6}, {4, 4, 3, 3}, {4}, {4}},
           [](Tensors x, Make) {
             return gradients(
                 x,
                 at::batch_norm(at::conv2d(x[0], x[1]), x[2], x[3], {}, {}, true, 0.1, 1e-5, false).pow(2));
           }},
          {"lstm_cell",
           {{4, 6}, {4, 6}, {4, 6}, {24, 6}, {24, 6}},
           [](Tensors x, Make) {
             const auto r = at::lstm_cell(x[0], {x[1], x[2]}, x[3], x[4]);
             return gradients(x, std::get<0>(r).pow(2) + std::get<1>(r));
           }},
          {"complex",
           {{4, 6, 2}},
           [](Tensors x, Make) {
             const auto c = at::view_as_complex(x[0] * 1);
             return gradients(x, at::view_as_real(c * c.conj() * c).pow(2));
           }},
          {"repeat_interleave, unfold, movedim",
           {{4, 6}},
           [](Tensors x, Make) {
             return gradients(x, x[0].repeat_interleave(2, 0).pow(2).sum() +
                                     x[0].unfold(0, 2, 2).pow(2).sum() + x[0].movedim(0, 1).pow(2).sum());
           }},
      },
      2, 1e-5);
}

TEST_CASE("trap 7: double backward, of stock operators and of the overridden ones") {
  for (int ranks : {2, 3})
    check_programs(
        {
            {"pow", {{8, 4}}, [](Tensors x, Make) { return twice(x, x[0].pow(3)); }},
            {"mm tanh", {{8, 4}, {4, 6}}, [](Tensors x, Make) { return twice(x, x[0].mm(x[1]).tanh()); }},
            {"matmul 2-D",
             {{8, 4}, {4, 6}},
             [](Tensors x, Make) { return twice(x, x[0].matmul(x[1]).tanh()); }},
            {"matmul 3-D",
             {{2, 4, 6}, {6, 5}},
             [](Tensors x, Make) { return twice(x, x[0].matmul(x[1]).pow(2)); }},
            {"matmul batched",
             {{2, 4, 6}, {2, 6, 4}},
             [](Tensors x, Make) { return twice(x, x[0].matmul(x[1]).pow(2)); }},
            {"linear",
             {{2, 4, 6}, {5, 6}, {5}},
             [](Tensors x, Make) { return twice(x, at::linear(x[0], x[1], x[2]).pow(2)); }},
            {"addmm",
             {{5}, {4, 6}, {6, 5}},
             [](Tensors x, Make) { return twice(x, at::addmm(x[0], x[1], x[2], 2, 3).pow(2)); }},
            {"embedding",
             {{8, 6}},
             [](Tensors x, Make make) {
               return twice(x, at::embedding(x[0], make(at::tensor({0, 1, 1, 7}, at::kLong)), 1).pow(3));
             }},
            {"layer_norm",
             {{4, 6}, {6}, {6}},
             [](Tensors x, Make) { return twice(x, at::layer_norm(x[0], {6}, x[1], x[2]).pow(2)); }},
            {"rms_norm",
             {{4, 6}, {6}},
             [](Tensors x, Make) { return twice(x, at::rms_norm(x[0], {6}, x[1]).pow(2)); }},
            {"softmax of a view",
             {{8, 4}},
             [](Tensors x, Make) {
               return twice(x, x[0].view({4, 2, 4}).softmax(-1).pow(3));
             }},
            {"max", {{8, 4}}, [](Tensors x, Make) { return twice(x, std::get<0>(x[0].max(1)).pow(3)); }},
        },
        ranks, 1e-5);
}
