// Every style: values and gradients as on one device, layouts as the style says.
#include <parallelize/all.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

torch::nn::Linear linear(std::int64_t from, std::int64_t to) { return torch::nn::Linear(from, to); }

void fill(torch::nn::Module& module) {
  module.to(at::kDouble);
  const torch::NoGradGuard no_grad;
  int seed = 0;
  for (auto& p : module.parameters()) p.copy_(values(p.sizes(), seed++) * 0.4);
}

// A packed QKV of unequal parts, a packed gate-up and plain Linears.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : qkv(register_module("qkv", linear(8, 16))),
        out(register_module("out", linear(8, 8))),
        gate_up(register_module("gate_up", linear(8, 24))),
        down(register_module("down", linear(12, 8))) {
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(x).split_with_sizes({8, 4, 4}, -1);
    const auto k = at::cat({parts[1], parts[1]}, -1), v = at::cat({parts[2], parts[2]}, -1);
    const auto h = x + out(parts[0] * k.tanh() + v);
    const auto halves = gate_up(h).chunk(2, -1);
    return h + down(at::silu(halves[0]) * halves[1]);
  }
  torch::nn::Linear qkv, out, gate_up, down;
};
TORCH_MODULE(Block);

struct PackedMlpImpl : torch::nn::Module {
  PackedMlpImpl()
      : gate_up(register_module("gate_up", linear(8, 24))), down(register_module("down", linear(12, 8))) {
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto halves = gate_up(x).chunk(2, -1);
    return down(at::silu(halves[0]) * halves[1]);
  }
  torch::nn::Linear gate_up, down;
};
TORCH_MODULE(PackedMlp);

// Two Linears in a row, without anything between.
struct ChainImpl : torch::nn::Module {
  ChainImpl() : a(register_module("a", linear(8, 12))), b(register_module("b", linear(12, 8))) {
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return b(a(x)); }
  torch::nn::Linear a, b;
};
TORCH_MODULE(Chain);

// Forward, gradients of input and parameters against the plain module; returns the output.
template <typename Holder>
at::Tensor check_equal(Holder model, Holder reference, const DeviceMesh& mesh, const ParallelPlan& plan,
                       const std::string& text, const Placement& input = Replicate()) {
  parallelize_module(*model, mesh, plan);
  const auto full = values({2, 6, 8}, 5);
  auto x = leaf(full, mesh, {input});
  auto plain = full.clone().set_requires_grad(true);
  const auto y = model(x), expected = reference(plain);
  check_close(y, expected.detach(), text + ": output", 1e-9);
  y.pow(2).sum().backward();
  expected.pow(2).sum().backward();
  check_close(x.grad(), plain.grad(), text + ": gradient of the input", 1e-9);
  const auto theirs = reference->named_parameters();
  for (const auto& p : model->named_parameters()) {
    check_close(p.value().grad(), theirs[p.key()].grad(), text + ": " + p.key(), 1e-9);
    check_placed(p.value().grad(), as_dtensor(p.value()).placements(), text + ": " + p.key());
  }
  return y.detach();
}

}  // namespace

TEST_CASE("packed styles cut each part alone") {
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](int) {
      const auto mesh = line(ranks);
      ParallelPlan plan;
      plan.rules = {{"gate_up", PackedColwise()}, {"down", RowwiseParallel()}};
      PackedMlp model;
      check_equal(model, PackedMlp(), mesh, plan, "gate and up");
      const CollectiveCounter counter;
      model(place(values({2, 6, 8}), mesh, {Replicate()}));
      check(counter.count(Collective::all_reduce, "tp", "wish") == (ranks > 1 ? 1 : 0), counter.to_string());
      check_placed(model->gate_up->weight, {Interleaved(0, {12, 12})}, "weight");
      check_placed(model->gate_up->bias, {Interleaved(0, {12, 12})}, "bias");
    });
}

TEST_CASE("a packed QKV of unequal parts, as in grouped-query attention") {
  for (const int ranks : {2, 4})
    run_ranks(ranks, [&](int) {
      const auto mesh = line(ranks);
      ParallelPlan plan;
      plan.rules = {{"qkv", PackedColwise({8, 4, 4})},
                    {"out", RowwiseParallel()},
                    {"gate_up", PackedColwise({12, 12})},
                    {"down", RowwiseParallel()}};
      Block model;
      check_equal(model, Block(), mesh, plan, "block");
      check_placed(model->qkv->weight, {Interleaved(0, {8, 4, 4})}, "weight");
    });
}

TEST_CASE("packed rowwise reads what packed colwise gives") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    ParallelPlan plan;
    plan.rules = {{"a", PackedColwise({8, 4})}, {"b", PackedRowwise({8, 4})}};
    Chain model;
    parallelize_module(*model, mesh, plan);
    const CollectiveCounter counter;
    check_close(model(place(values({2, 6, 8}), mesh, {Replicate()})), Chain()(values({2, 6, 8})), "values");
    check(counter.total() == 1, "one all-reduce, not " + counter.to_string());
    check_equal(Chain(), Chain(), mesh, plan, "packed chain");
  });
}

TEST_CASE("colwise with gathered output, rowwise that splits its input") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    ParallelPlan plan;
    plan.rules = {{"a", ColwiseParallel({}, Replicate())}, {"b", RowwiseParallel(Replicate())}};
    check_equal(Chain(), Chain(), mesh, plan, "gathered and split");
    plan.rules = {{"a", ColwiseParallel(Shard(1))}, {"b", RowwiseParallel({}, Shard(1))}};
    const auto y = check_equal(Chain(), Chain(), mesh, plan, "sequence", Shard(1));
    check_placed(y, {Shard(1)}, "the output stays cut by sequence");
    plan.rules = {{"a", ReplicateParallel(Shard(1), Shard(1))}, {"b", ReplicateParallel()}};
    check_placed(check_equal(Chain(), Chain(), mesh, plan, "replicate", Shard(1)), {Shard(1)}, "replicate");
  });
}

TEST_CASE("embeddings by vocabulary and by hidden size, output gathered or kept") {
  struct NetImpl : torch::nn::Module {
    NetImpl() : table(register_module("table", torch::nn::Embedding(11, 6))) { fill(*this); }
    torch::nn::Embedding table;
  };
  struct Case {
    Style style;
    Placement weight, output;
  };
  for (const auto& c :
       {Case{EmbeddingRowwise(), Shard(0), Replicate()}, Case{EmbeddingRowwise(Shard(1)), Shard(0), Shard(1)},
        Case{EmbeddingRowwise(Partial()), Shard(0), Partial()}, Case{EmbeddingColwise(), Shard(1), Shard(2)},
        Case{EmbeddingColwise(Replicate()), Shard(1), Replicate()}})
    run_ranks(2, [&](int) {
      const auto mesh = line(2);
      NetImpl model, reference;
      ParallelPlan plan;
      plan.rules = {{"table", c.style}};
      parallelize_module(model, mesh, plan);
      check_placed(model.table->weight, {c.weight}, "table");
      const auto tokens = at::arange(10, at::kLong).mul(7).remainder(11).view({2, 5});
      const auto y = model.table(place(tokens, mesh, {Replicate()})), expected = reference.table(tokens);
      check_placed(y, {c.output}, "output");
      check_close(y, expected.detach(), "values");
      (y * place(values({2, 5, 6}), mesh, {Replicate()})).sum().backward();
      (expected * values({2, 5, 6})).sum().backward();
      check_close(model.table->weight.grad(), reference.table->weight.grad(), "gradient");
    });
}

namespace {

struct ScaledImpl : torch::nn::Module {
  ScaledImpl() : scale(register_parameter("scale", at::ones({8}, at::kDouble))) {
    declare_points(*this, {"input", "output"});
  }
  at::Tensor forward(at::Tensor x) {
    x = constrain(*this, "input", x);
    seen = x.detach();
    return constrain(*this, "output", x.sin() * scale);
  }
  at::Tensor scale, seen;
};
TORCH_MODULE(Scaled);

struct UnreachableImpl : torch::nn::Module {
  UnreachableImpl() : own(register_parameter("own", at::ones({8, 8}, at::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) { return x + own.sum(); }
  at::Tensor own;
};
TORCH_MODULE(Unreachable);

struct OuterImpl : torch::nn::Module {
  OuterImpl() : inner(register_module("inner", Scaled())), other(register_module("other", Unreachable())) {}
  Scaled inner;
  Unreachable other;
};

}  // namespace

TEST_CASE("prepare_input and prepare_output at the points of a module of the user's own") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    OuterImpl model;
    const auto x = values({2, 6, 8});
    const auto expected = model.inner(x);
    ParallelPlan plan;
    plan.rules = {{"inner", PrepareModuleInputOutput(Replicate(), Shard(1), Shard(1), Shard(2))}};
    parallelize_module(model, mesh, plan);
    const auto y = model.inner(place(x, mesh, {Replicate()}));
    check_placed(model.inner->seen, {Shard(1)}, "input");
    check_placed(y, {Shard(2)}, "output");
    check_close(y.detach(), expected.detach(), "values");
    check_placed(model.inner(x), {Shard(2)}, "a plain tensor comes as the rule states");
    unparallelize(model);
    check(!is_dtensor(model.inner(x)), "plain again");
  });
}

TEST_CASE("prepare_* on a module that nothing reaches tells which call to add") {
  run_ranks(2, [](int) {
    OuterImpl model;
    ParallelPlan plan;
    plan.rules = {{"other", PrepareModuleInput({}, Shard(1))}};
    const auto text = refusal_of<PlanError>([&] { parallelize_module(model, line(2), plan); }, "unreachable");
    check_contains(text, "x = dtensor::constrain(*this, \"input\", x);");
    check_contains(text, "module \"other\"");
  });
}

TEST_CASE("prepare_* on stock modules and on children of a Sequential") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    torch::nn::Sequential model(linear(8, 8), torch::nn::Functional(at::tanh), torch::nn::Tanh(),
                                linear(8, 8)),
        reference(linear(8, 8), torch::nn::Functional(at::tanh), torch::nn::Tanh(), linear(8, 8));
    fill(*model);
    fill(*reference);
    ParallelPlan plan;
    plan.rules = {{"0", PrepareModuleOutput({}, Shard(1))},
                  {"2", PrepareModuleInputOutput({}, Shard(2), {}, Shard(0))}};
    parallelize_module(*model, mesh, plan);
    const auto x = values({2, 6, 8});
    const CollectiveCounter counter;
    const at::Tensor input = place(x, mesh, {Replicate()});
    check_close(model->forward(input).detach(), reference->forward(x).detach(), "values");
    check(counter.count(Collective::all_to_all, "tp", "wish") == 2, counter.to_string());
    check(model->named_parameters().contains("3.weight"), "names stay");
    unparallelize(*model);
    check_close(model->forward(x).detach(), reference->forward(x).detach(), "plain again");
    check(!is_dtensor(model->forward(x)), "a plain result");
  });
}

namespace {
// Experts that all read the input, and whose outputs are added.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    up = register_parameter("up", torch::empty({4, 8, 6}));
    down = register_parameter("down", torch::empty({4, 6, 8}));
    scale = register_buffer("scale", torch::ones({8}));
    declare_points(*this, {"input", "output"});
    fill(*this);
  }
  at::Tensor forward(at::Tensor x) {
    x = constrain(*this, "input", x).flatten(0, 1);
    const auto hidden = at::silu(x.unsqueeze(0).expand({4, -1, -1}).bmm(up));
    const auto y = hidden.bmm(down).sum(0) * scale;
    return constrain(*this, "output", y.view({2, 6, 8}));
  }
  at::Tensor up, down, scale;
};
TORCH_MODULE(Experts);

struct WithExpertsImpl : torch::nn::Module {
  WithExpertsImpl() : experts(register_module("experts", Experts())), head(register_module("head", linear(8, 8))) {
    fill(*head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(experts(x)); }
  Experts experts;
  torch::nn::Linear head;
};
TORCH_MODULE(WithExperts);

ParallelPlan plan_with(const std::string& style, const std::string& match = "experts") {
  return ParallelPlan::from_json(R"({"version": 1, "tensor_parallel": {"dim": "tp", "uncovered": "replicate", "rules": [
    {"match": ")" + match + R"(", "style": ")" + style + R"("}]}})");
}
}  // namespace

TEST_CASE("a style of the program's own") {
  register_style("experts", {.tensors = {{"up", Shard(0)}, {"down", Shard(-3)}}, .input = Replicate(), .output = Replicate()});
  register_style("experts", {.tensors = {{"up", Shard(0)}, {"down", Shard(-3)}}, .input = Replicate(), .output = Replicate()});
  run_ranks(3, [](int) {  // one expert more than ranks
    WithExperts model, reference;
    const auto plan = plan_with("experts");
    check(plan.rules[0].style == RegisteredStyle("experts"), "in code as in JSON");
    check(ParallelPlan::from_json(plan.to_json()) == plan, "reads back equal");
    const auto y = check_equal(model, reference, line(3), plan, "experts", Shard(1));
    check_placed(model->experts->up, {Shard(0)}, "up");
    check_placed(model->experts->down, {Shard(0)}, "down");
    check_placed(model->experts->scale, {Replicate()}, "scale");
    check_placed(y, {Replicate()}, "output");
  });
}

TEST_CASE("a style of the program's own: what is wrong is told") {
  const auto taken = [](const std::string& name, CustomStyle style) {
    return error_of<PlanError>([&] { register_style(name, std::move(style)); }, name);
  };
  register_style("first_cut", {.tensors = {{"up", Shard(0)}}});
  check_contains(taken("first_cut", {.tensors = {{"up", Shard(1)}}}), "up Shard(0)");
  check_contains(taken("colwise", {}), "of this library");
  check_contains(taken("pending", {.tensors = {{"up", Partial()}}}), "Partial");
  check_contains(error_of<PlanError>([] { plan_with("first_cutt"); }, "unknown"), "first_cut");
  register_style("badly_cut", {.tensors = {{"up", Shard(3)}, {"none", Shard(0)}, {"scale", Interleaved(0, {4, 3})}}});
  run_ranks(2, [](int) {
    WithExperts model;
    const auto text = refusal_of<PlanError>([&] { parallelize_module(*model, line(2), plan_with("badly_cut")); }, "badly");
    for (const char* part : {"[4, 8, 6]", "no parameter or buffer \"none\"", "the parts make 7", "rule 1", "\"experts\""})
      check_contains(text, part);
    check(!is_dtensor(model->experts->up), "nothing has changed");
  });
  run_ranks(5, [](int) {
    WithExperts model;
    check_contains(refusal_of<PlanError>([&] { parallelize_module(*model, line(5), plan_with("first_cut")); }, "few"),
                   "fewer than the ranks");
  });
}

TEST_CASE("a rule with override wins over the others that match") {
  run_ranks(2, [](int) {
    Chain model;
    ParallelPlan plan;
    plan.rules = {{"*", ReplicateParallel()}, {"a", ColwiseParallel({}, Replicate()), true}};
    parallelize_module(*model, line(2), plan);
    check_placed(model->a->weight, {Shard(0)}, "a");
    check_placed(model->b->weight, {Replicate()}, "b");
  });
}

TEST_CASE("unparallelize gives plain tensors back, in place, that train on") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    Block model, reference;
    const auto weight = model->qkv->weight;
    ParallelPlan plan;
    plan.rules = {{"qkv", PackedColwise({8, 4, 4})},
                  {"out", RowwiseParallel()},
                  {"gate_up", PackedColwise()},
                  {"down", RowwiseParallel()}};
    parallelize_module(*model, mesh, plan);
    model(place(values({2, 6, 8}), mesh, {Replicate()})).sum().backward();
    reference(values({2, 6, 8})).sum().backward();
    unparallelize(*model);
    unparallelize(*model);  // nothing left to do
    check(weight.is_same(model->qkv->weight) && !is_dtensor(weight), "the same tensor, plain");
    const auto theirs = reference->named_parameters();
    for (const auto& p : model->named_parameters()) {
      check(!is_dtensor(p.value()) && !is_dtensor(p.value().grad()), p.key() + " is plain");
      check_close(p.value(), theirs[p.key()], p.key());
      check_close(p.value().grad(), theirs[p.key()].grad(), p.key() + ": gradient");
    }
    model->zero_grad();
    reference->zero_grad();
    model(values({3, 8})).sum().backward();
    reference(values({3, 8})).sum().backward();
    for (const auto& p : model->named_parameters())
      check_close(p.value().grad(), theirs[p.key()].grad(), p.key());
    parallelize_module(*model, mesh, plan);  // and once more
    check(is_dtensor(weight), "parallel again");
  });
}

TEST_CASE("ranks with another plan or module are told apart on all ranks") {
  run_ranks(3, [](int rank) {
    const auto mesh = line(3);
    ParallelPlan plan;
    plan.rules = {{"a", ColwiseParallel()},
                  {"b", RowwiseParallel({}, rank == 1 ? std::optional(Shard(1)) : std::nullopt)}};
    Chain model;
    const auto text = error_of<PlanError>([&] { parallelize_module(*model, mesh, plan); }, "plans differ");
    check_contains(text, "rank 1 holds another plan or module than rank 0");
    check_contains(text, "Shard(1)");
    check(!is_dtensor(model->a->weight), "nothing changed");
  });
}

TEST_CASE("the report as JSON") {
  run_ranks(2, [](int) {
    Chain model;
    ParallelPlan plan;
    plan.rules = {{"a", ColwiseParallel()}, {"b", RowwiseParallel()}};
    const auto text = parallelize_module(*model, line(2), plan).to_json();
    for (const char* part :
         {"\"name\": \"a.weight\"", "\"placements\": [", "\"Shard(0)\"", "\"local_bytes\": "})
      check_contains(text, part);
  });
}
