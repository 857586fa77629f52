// parallelize_module: what becomes of modules, and what is refused before anything happens.
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

struct MlpImpl : torch::nn::Module {
  MlpImpl()
      : up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 6))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::silu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Mlp);

// LibTorch's generator belongs to the process.
Mlp build() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  Mlp model;
  model->to(torch::kDouble);
  return model;
}

ParallelPlan plan(std::optional<Placement> output = {}) {
  ParallelPlan plan;
  plan.rules = {{"up", ColwiseParallel()}, {"down", RowwiseParallel({}, output)}};
  return plan;
}

// All faults of a refused plan, on every rank alike, with nothing sent and nothing changed.
std::string refused(int ranks, const ParallelPlan& bad, const std::vector<std::string>& parts) {
  run_ranks(ranks, [&](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
    auto model = build();
    const CollectiveCounter counter;
    try {
      parallelize_module(*model, mesh, bad);
    } catch (const Error& error) {
      for (const auto& part : parts)
        expect(std::string(error.what()).find(part) != std::string::npos,
               "no '" + part + "' in: " + error.what());
      expect(counter.total() == 0, "a collective ran before the refusal");
      for (const auto& parameter : model->parameters())
        expect(!is_dtensor(parameter), "a parameter was changed");
      return;
    }
    throw std::runtime_error("not refused");
  });
  return "";
}

}  // namespace

TEST_CASE("colwise and rowwise Linear equal the plain module, forward and backward") {
  for (int ranks : {1, 2, 3})
    for (const auto& output : {Replicate(), Shard(1), Shard(0)})
      run_ranks(ranks, [&](int) {
        const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
        auto model = build(), reference = build();
        const auto weight = model->up->weight;  // a typed member taken before
        parallelize_module(*model, mesh, plan(output));
        expect(is_dtensor(weight) && weight.is_same(model->up->weight), "the member is another tensor");
        const auto input = torch::arange(5 * 4 * 6, torch::kDouble).view({5, 4, 6}).sin();
        auto x = distribute_tensor(input, mesh, {Replicate()}, {.source = std::nullopt});
        x.set_requires_grad(true);
        auto plain = input.clone().set_requires_grad(true);
        const auto y = model(x), expected = reference(plain);
        expect(as_dtensor(y).placements()[0] == output, "the output is not placed as the plan says");
        expect(torch::allclose(as_dtensor(y).full_tensor(), expected), "values differ");
        y.pow(2).sum().backward();
        expected.pow(2).sum().backward();
        expect(torch::allclose(as_dtensor(x.grad()).full_tensor(), plain.grad()), "input gradients differ");
        const auto parameters = model->named_parameters();
        for (const auto& item : reference->named_parameters()) {
          const auto& parameter = parameters[item.key()];
          expect(as_dtensor(parameter.grad()).placements() == as_dtensor(parameter).placements(),
                 item.key() + ": the gradient is placed otherwise");
          expect(torch::allclose(as_dtensor(parameter.grad()).full_tensor(), item.value().grad()),
                 item.key() + ": gradients differ");
        }
      });
}

namespace {

struct EmbeddedImpl : torch::nn::Module {
  EmbeddedImpl()
      : table(register_module("table", torch::nn::Embedding(40, 6))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))) {}
  at::Tensor forward(const at::Tensor& tokens) { return norm(table(tokens)); }
  torch::nn::Embedding table;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Embedded);

}  // namespace

TEST_CASE("trap 23: a whole embedding that enters sequence parallel gathers activations in backward, reduces no table") {
  Embedded plain;
  plain->to(torch::kDouble);
  const auto tokens = torch::arange(2 * 5, torch::kLong).mul(7).remainder(40).view({2, 5});
  const auto weights = torch::arange(2 * 5 * 6, torch::kDouble).sin().view({2, 5, 6});
  (plain(tokens) * weights).sum().backward();
  run_ranks(2, [&](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    Embedded model;
    model->to(torch::kDouble);
    {
      const torch::NoGradGuard no_grad;
      model->table->weight.copy_(plain->table->weight);
    }
    ParallelPlan by_sequence;
    by_sequence.rules = {{"norm", SequenceParallel()}};
    parallelize_module(*model, mesh, by_sequence);
    const auto place = [&](const at::Tensor& full) { return distribute_tensor(full, mesh, {Replicate()}); };
    const auto input = place(tokens), factor = place(weights);
    CollectiveCounter forward;
    const auto output = model(input);
    expect(as_dtensor(output).placements() == Placements{Shard(1)}, "the norm works on its part of the sequence");
    expect(forward.total() == 0, "entering the sequence shard is free");
    const auto loss = (output * factor).sum();
    CollectiveCounter backward;
    loss.backward();
    std::int64_t gathers = 0, others = 0;
    for (const auto& [key, tally] : backward.tallies()) {
      if (key.collective == Collective::all_gather) {
        gathers += tally.calls;
        expect(tally.bytes <= 2 * 5 * 6 * 8, "the gather moves no more than the activations");
      } else if (tally.bytes > 2 * 6 * 8) {  // the gradients of the norm's weight and bias are small
        others += tally.calls;
      }
    }
    expect(gathers == 1 && others == 0, "one gather of the activations' gradient, not " + backward.to_string());
    const auto gradient = as_dtensor(model->table->weight.grad()).full_tensor();
    expect(at::allclose(gradient, plain->table->weight.grad(), 1e-12, 1e-12), "the table's gradient");
  });
}

TEST_CASE("rank 0's values win, or every rank's own are trusted") {
  run_ranks(2, [](int rank) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    auto model = build();
    {
      const torch::NoGradGuard no_grad;
      model->up->weight.fill_(rank + 1);
    }
    parallelize_module(*model, mesh, plan());
    expect(torch::equal(as_dtensor(model->up->weight.detach()).full_tensor(),
                        torch::ones({8, 6}, torch::kDouble)),
           "rank 0's values did not win");
  });
}

TEST_CASE("the report tells what became of each tensor") {
  run_ranks(2, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    auto model = build();
    const auto report = parallelize_module(*model, mesh, plan());
    expect(report.tensors.size() == 4, "four parameters");
    expect(report.bytes() == 8 * (48 + 8 + 48 + 6), "bytes");
    expect(report.local_bytes() == 8 * (24 + 4 + 24 + 6), "local bytes");
    expect(report.replicated_bytes() == 8 * 6, "the rowwise bias is whole");
    expect(report.to_string().find("down.weight") != std::string::npos, "a table");
  });
}

TEST_CASE("tied embedding and head keep one placement and one tensor") {
  struct TiedImpl : torch::nn::Module {
    TiedImpl()
        : tok(register_module("tok", torch::nn::Embedding(7, 4))),
          head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 7).bias(false)))) {
      head->weight.set_data(tok->weight);
    }
    at::Tensor forward(const at::Tensor& tokens) { return head(tok(tokens)); }
    torch::nn::Embedding tok;
    torch::nn::Linear head;
  };
  run_ranks(2, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    static std::mutex mutex;
    std::optional<TiedImpl> model, reference;
    {
      const std::lock_guard lock(mutex);
      torch::manual_seed(1);
      model.emplace();
      torch::manual_seed(1);
      reference.emplace();
    }
    ParallelPlan tied;
    tied.rules = {{"tok", RowwiseParallel()}, {"head", ColwiseParallel({}, Replicate())}};
    const auto report = parallelize_module(*model, mesh, tied);
    expect(report.tensors.size() == 1 && report.tensors[0].aliases.size() == 1, "one tensor with two names");
    const auto tokens = torch::tensor({0, 6, 3, 3}, torch::kInt64);
    const auto y = model->forward(distribute_tensor(tokens, mesh, {Replicate()}));
    expect(torch::allclose(as_dtensor(y.detach()).full_tensor(), reference->forward(tokens), 1e-5, 1e-6),
           "values differ");
  });
}

TEST_CASE("bad plans are refused by name, on all ranks, before anything happens") {
  auto bad = plan();
  bad.rules.push_back({"blocks.*.wq", ColwiseParallel()});
  refused(2, bad, {"rule 3", "blocks.*.wq", "matches no module"});

  bad = plan();
  bad.rules.push_back({"{up,down}", RowwiseParallel()});
  refused(2, bad, {"\"up\"", "matched by rule 1", "rule 3", "each module takes one"});

  bad = plan();
  bad.tensor_parallel_dims = {"model"};
  refused(2, bad, {"\"model\"", "(tp=2)"});

  bad = plan();
  bad.mesh = PlanMesh{{"tp"}, {4}};
  refused(2, bad, {"size 4 in the plan and 2 in the mesh"});

  bad = plan();
  bad.rules[0].style = SequenceParallel();
  refused(2, bad, {"sequence_parallel", "does not suit", "\"up\""});

  // Several faults come together.
  bad = plan();
  bad.rules[0].match = "upp";
  bad.rules.push_back({"nothing", ColwiseParallel()});
  refused(2, bad, {"\"upp\"", "did you mean \"up\"", "\"nothing\""});
}

TEST_CASE("a plan is applied once") {
  run_ranks(2, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    auto model = build();
    parallelize_module(*model, mesh, plan());
    try {
      parallelize_module(*model, mesh, plan());
    } catch (const PlanError& error) {
      return expect(std::string(error.what()).find("parallelised before") != std::string::npos, error.what());
    }
    throw std::runtime_error("applied twice");
  });
}

TEST_CASE("a mesh that does not fit the world is refused with both numbers") {
  run_ranks(3, [](int) {
    auto wanted = plan();
    wanted.mesh = PlanMesh{{"dp", "tp"}, {2, 2}};
    try {
      make_mesh(wanted, World::current());
    } catch (const MeshError& error) {
      const std::string text = error.what();
      return expect(
          text.find("needs 4 ranks") != std::string::npos && text.find("has 3") != std::string::npos, text);
    }
    throw std::runtime_error("not refused");
  });
}
