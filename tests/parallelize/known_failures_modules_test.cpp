// Public failures of other systems that concern parallel modules and plans, restated; each test bears its number.
#include <parallelize/all.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

// A tree of Linears by path ("layers.0.fc"), in float64, with values that depend on the path's place in the list.
struct Tree : torch::nn::Module {
  struct Shape {
    std::string path;
    std::int64_t in, out;
    bool bias = true;
  };
  explicit Tree(const std::vector<Shape>& shapes) {
    int seed = 0;
    for (const auto& [path, in, out, bias] : shapes) {
      const auto last = path.rfind('.');
      torch::nn::Module* parent = this;
      if (last != std::string::npos) parent = child(path.substr(0, last));
      torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(bias));
      linear->to(at::kDouble);
      const torch::NoGradGuard no_grad;
      for (auto& p : linear->parameters()) p.copy_(values(p.sizes(), seed++) * 0.4);
      parent->register_module(last == std::string::npos ? path : path.substr(last + 1), linear);
    }
  }
  torch::nn::LinearImpl& linear(const std::string& path) {
    for (auto& item : named_modules("", false))
      if (item.key() == path) return *item.value()->as<torch::nn::LinearImpl>();
    throw std::runtime_error("no module " + path);
  }

 private:
  torch::nn::Module* child(const std::string& path) {
    for (auto& item : named_modules("", false))
      if (item.key() == path) return item.value().get();
    const auto last = path.rfind('.');
    auto* parent = last == std::string::npos ? this : child(path.substr(0, last));
    return parent->register_module(last == std::string::npos ? path : path.substr(last + 1), std::make_shared<Holder>()).get();
  }
  struct Holder : torch::nn::Module {};
};

ParallelPlan plan_of(std::vector<PlanRule> rules, Uncovered uncovered = Uncovered::error) {
  ParallelPlan plan;
  plan.uncovered = uncovered;
  plan.rules = std::move(rules);
  return plan;
}

void check_gradients(torch::nn::Module& module, torch::nn::Module& reference, double tolerance = 1e-12) {
  const auto expected = reference.named_parameters();
  for (const auto& p : module.named_parameters())
    check_close(p.value().grad(), expected[p.key()].grad(), "gradient of " + p.key(), tolerance);
}

}  // namespace

TEST_CASE("K31: the input gradient of a column-split layer is reduced once") {
  run_ranks(2, [](int) {
    for (const auto& output : {std::optional<Placement>(), std::optional<Placement>(Replicate())}) {
      const auto mesh = line(2);
      Tree net({{"fc", 3, 4}});
      {
        const torch::NoGradGuard no_grad;
        net.linear("fc").weight.copy_(at::arange(1, 5, at::kDouble).unsqueeze(1).expand({4, 3}));
      }
      parallelize_module(net, mesh, plan_of({{"fc", ColwiseParallel({}, output)}}));
      const auto x = at::ones({2, 3}, at::kDouble).set_requires_grad(true);
      const auto loss = net.linear("fc").forward(distribute_tensor(x, mesh, {Replicate()}, {std::nullopt})).sum();
      const CollectiveCounter counter;
      loss.backward();
      check(counter.count(Collective::all_reduce) == 1 && counter.total() == 1, counter.to_string());
      check_close(x.grad(), at::full({2, 3}, 10, at::kDouble), "gradient of the input");
    }
  });
}

TEST_CASE("K38: the bias of a row-split layer is added once") {
  for (const int ranks : {2, 4})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      for (const auto& input : {Placement(Replicate()), Placement(Shard(-1))})
        for (const auto& output : {Placement(Replicate()), Placement(Shard(0))}) {
          Tree net({{"fc", 4, 2}});
          {
            const torch::NoGradGuard no_grad;
            net.linear("fc").weight.copy_(at::tensor({1., 1., 1., 1., 1., 0., 1., 0.}, at::kDouble).view({2, 4}));
            net.linear("fc").bias.copy_(at::tensor({100., 200.}, at::kDouble));
          }
          parallelize_module(net, mesh, plan_of({{"fc", RowwiseParallel({}, output)}}));
          const auto x = place(at::tensor({1., 2., 3., 4.}, at::kDouble).view({1, 4}), mesh,
                               {input.is_replicate() ? Placement(Replicate()) : Placement(Shard(1))});
          const auto y = net.linear("fc").forward(x);
          check_placed(y, {output}, "output");
          check_close(y, at::tensor({110., 204.}, at::kDouble).view({1, 2}), "output");
        }
    });
}

TEST_CASE("K39: what is below two dimensions is placed by its role") {
  run_ranks(2, [](int) {
    for (const std::int64_t out : {4, 5})
      for (const bool bias : {true, false}) {
        const auto mesh = line(2);
        Tree net({{"fc", 3, out, bias}}), reference({{"fc", 3, out, bias}});
        net.linear("fc").register_buffer("scale", at::scalar_tensor(2, at::kDouble));
        parallelize_module(net, mesh, plan_of({{"fc", ColwiseParallel({}, Replicate())}}));
        if (bias) check_placed(net.linear("fc").bias, {Shard(0)}, "bias");
        check_placed(net.linear("fc").named_buffers()["scale"], {Replicate()}, "a 0-dimensional buffer");
        const auto x = values({2, 3});
        auto& layer = net.linear("fc");
        check_close(layer.forward(place(x, mesh, {Replicate()})) * layer.named_buffers()["scale"],
                    reference.linear("fc").forward(x) * 2, "output");
      }
  });
}

TEST_CASE("K40: a global head count in the forward means the global tensor; on a local one the sizes do not pass quietly") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    Tree net({{"q", 16, 32}}), reference({{"q", 16, 32}});
    parallelize_module(net, mesh, plan_of({{"q", ColwiseParallel()}}));
    const auto x = values({2, 6, 16});
    const at::Tensor q = net.linear("q").forward(place(x, mesh, {Replicate()}));
    const auto heads = q.view({2, -1, 8, 4});
    check_placed(heads, {Shard(2)}, "heads");
    check_close(heads, reference.linear("q").forward(x).view({2, 6, 8, 4}), "heads", 1e-12);
    // A local tensor is this rank's part by the program's own request: local_region and to_local say so at the call, and
    // coming back needs placements that its sizes must fit.
    const auto local = DTensor(q).to_local();
    const auto wrong = local.view({2, -1, 8, 4});
    FromLocalOptions options;
    options.global_sizes = {2, 6, 8, 4};
    check_contains(error_of<PlacementError>([&] { from_local(wrong, mesh, {Shard(2)}, options); }, "local heads"), "[2, 3, 8, 4]");
  });
}

TEST_CASE("K41: patterns are compared with the whole path from the module given") {
  const std::vector<Tree::Shape> shapes = {{"model.layers.0.self_attn.q_proj", 4, 4},
                                           {"model.layers.0.self_attn.o_proj", 4, 4},
                                           {"model.layers.1.self_attn.q_proj", 4, 4},
                                           {"model.layers.1.self_attn.o_proj", 4, 4}};
  run_ranks(2, [&](int) {
    for (const bool at_child : {false, true}) {
      Tree net(shapes);
      const std::string prefix = at_child ? "" : "model.";
      const auto plan = ParallelPlan::from_json(
          R"({"version": 1, "tensor_parallel": {"rules": [{"match": ")" + prefix +
          R"(layers.*.self_attn.q_proj", "style": "colwise"}, {"match": ")" + prefix +
          R"(layers.*.self_attn.o_proj", "style": "rowwise"}]}})");
      auto& root = at_child ? *net.named_children()["model"] : static_cast<torch::nn::Module&>(net);
      const auto report = parallelize_module(root, line(2), plan);
      std::int64_t cut = 0;
      for (const auto& tensor : report.tensors)
        if (tensor.sizes.size() == 2 && tensor.placements[0].is_sharded()) ++cut;
      check(cut == 4, report.to_string());
      Tree other(shapes);
      auto& wrong = at_child ? static_cast<torch::nn::Module&>(other) : *other.named_children()["model"];
      check_contains(refusal_of<PlanError>([&] { parallelize_module(wrong, line(2), plan); }, "the other root"), "q_proj");
    }
  });
}

TEST_CASE("K42: a pattern matches whole names only") {
  run_ranks(2, [](int) {
    std::vector<Tree::Shape> shapes;
    for (int i = 0; i < 12; ++i)
      for (const char* name : {"fc", "fc_out"}) shapes.push_back({fmt::format("layers.{}.{}", i, name), 4, 4});
    Tree net(shapes);
    parallelize_module(net, line(2), plan_of({{"layers.1.fc", ColwiseParallel()}, {"layers.1.fc_out", RowwiseParallel()}},
                                        Uncovered::replicate));
    for (const auto& shape : shapes) {
      const Placements expected = {shape.path == "layers.1.fc"       ? Placement(Shard(0))
                                   : shape.path == "layers.1.fc_out" ? Placement(Shard(1))
                                                                     : Placement(Replicate())};
      check_placed(net.linear(shape.path).weight, expected, shape.path);
    }
  });
}

TEST_CASE("K43: a plan of part of a block") {
  const std::vector<Tree::Shape> shapes = {{"qkv", 4, 4}, {"out", 4, 4}, {"up", 4, 8}, {"down", 8, 4}};
  const auto forward = [](Tree& net, const at::Tensor& x) {
    const auto y = x + net.linear("out").forward(at::tanh(net.linear("qkv").forward(x)));
    return y + net.linear("down").forward(at::gelu(net.linear("up").forward(y)));
  };
  const std::vector<std::vector<PlanRule>> plans = {{{"qkv", ColwiseParallel()}, {"out", RowwiseParallel()}},
                                                    {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}},
                                                    {{"up", ColwiseParallel()}},
                                                    {{"down", RowwiseParallel()}}};
  run_ranks(2, [&](int) {
    for (const auto& rules : plans) {
      Tree net(shapes), reference(shapes);
      parallelize_module(net, line(2), plan_of(rules, Uncovered::replicate));
      const auto x = values({3, 4});
      const auto y = forward(net, place(x, line(2), {Replicate()})), expected = forward(reference, x);
      check_close(y, expected, "output", 1e-12);
      y.pow(2).sum().backward();
      expected.pow(2).sum().backward();
      check_gradients(net, reference);
    }
  });
}

TEST_CASE("K44: a plain tensor beside a DTensor: the right value, or an error with operator, argument and remedy") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = values({2, 4}), logits = values({3, 6});
    const auto labels = at::tensor({1, 5, 0}, at::kLong);
    const auto placed = place(x, mesh, {Shard(1)});
    for (const bool reverse : {false, true}) {
      const auto text = refusal_of<UnsupportedError>([&] { reverse ? placed + x : x + placed; }, "x + f(x)");
      for (const char* part : {"aten::add", reverse ? "other" : "self", "distribute_tensor"}) check_contains(text, part);
    }
    PolicyGuard guard({Fallback::warn, ImplicitMoves::allow, PlainTensors::replicate_checked});
    check_close(x + placed, x + x, "plain + placed");
    check_close(placed + x, x + x, "placed + plain");
    check_close(at::cross_entropy_loss(place(logits, mesh, {Shard(1)}), labels), at::cross_entropy_loss(logits, labels),
                "plain labels", 1e-12);
  });
}

TEST_CASE("K46: a vocabulary that does not divide trains as on one device") {
  struct Net : torch::nn::Module {
    explicit Net(std::int64_t vocabulary)
        : embedding(register_module("embedding", torch::nn::Embedding(vocabulary, 4))),
          head(register_module("head", torch::nn::Linear(4, vocabulary))) {
      to(at::kDouble);
      const torch::NoGradGuard no_grad;
      int seed = 0;
      for (auto& p : parameters()) p.copy_(values(p.sizes(), seed++) * 0.5);
    }
    at::Tensor forward(const at::Tensor& tokens) { return head(embedding(tokens)); }
    torch::nn::Embedding embedding;
    torch::nn::Linear head;
  };
  for (const auto& [ranks, vocabulary] : {std::pair<int, std::int64_t>{2, 7}, {4, 5}, {3, 7}})
    run_ranks(ranks, [ranks = ranks, vocabulary = vocabulary](int) {
      const auto mesh = line(ranks);
      Net net(vocabulary), reference(vocabulary);
      parallelize_module(net, mesh, plan_of({{"embedding", RowwiseParallel()}, {"head", ColwiseParallel()}}));
      torch::optim::SGD optimizer(net.parameters(), 0.5), expected(reference.parameters(), 0.5);
      const auto tokens = at::arange(8, at::kLong).remainder(vocabulary),
                 targets = (at::arange(8, at::kLong) * 3 + vocabulary - 1).remainder(vocabulary);
      for (int step = 0; step < 20; ++step) {
        optimizer.zero_grad();
        expected.zero_grad();
        const auto logits = net.forward(place(tokens, mesh, {Replicate()}));
        check_placed(logits, {Shard(1)}, "logits");
        const auto loss = at::cross_entropy_loss(logits, place(targets, mesh, {Replicate()})),
                   wanted = at::cross_entropy_loss(reference.forward(tokens), targets);
        check_close(loss, wanted, "loss", 1e-12);
        loss.backward();
        wanted.backward();
        optimizer.step();
        expected.step();
      }
      const auto theirs = reference.named_parameters();
      for (const auto& p : net.named_parameters()) check_close(p.value(), theirs[p.key()], p.key(), 1e-12);
    });
}

TEST_CASE("K47: tied weights stay one parameter, and two cuts of it are refused") {
  struct TiedLinearImpl : torch::nn::LinearImpl {
    explicit TiedLinearImpl(const at::Tensor& shared)
        : LinearImpl(torch::nn::LinearOptions(shared.size(1), shared.size(0)).bias(false)) {
      weight = parameters_["weight"] = shared;
    }
  };
  struct Net : torch::nn::Module {
    Net() : emb(register_module("emb", torch::nn::Embedding(8, 4))) {
      to(at::kDouble);
      {
        const torch::NoGradGuard no_grad;
        emb->weight.copy_(values({8, 4}) * 0.4);
      }
      out = register_module("out", std::make_shared<TiedLinearImpl>(emb->weight));
    }
    at::Tensor forward(const at::Tensor& tokens) { return out->forward(emb(tokens)); }
    torch::nn::Embedding emb;
    std::shared_ptr<TiedLinearImpl> out;
  };
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    for (const auto& rules : std::vector<std::vector<PlanRule>>{
             {{"emb", RowwiseParallel()}, {"out", ColwiseParallel({}, Replicate())}}, {{"emb", RowwiseParallel()}}}) {
      Net net, reference;
      parallelize_module(net, mesh, plan_of(rules));
      check(net.out->weight.is_same(net.emb->weight) && net.parameters().size() == 2, "one parameter with two names");
      check_placed(net.emb->weight, {Shard(0)}, "the table");
      torch::optim::Adam optimizer({net.emb->weight}, 0.05), expected({reference.emb->weight}, 0.05);
      const auto tokens = at::tensor({0, 7, 3, 3, 5}, at::kLong);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        expected.zero_grad();
        const auto loss = net.forward(place(tokens, mesh, {Replicate()})).pow(2).mean(),
                   wanted = reference.forward(tokens).pow(2).mean();
        check_close(loss, wanted, "loss", 1e-12);
        loss.backward();
        wanted.backward();
        check_close(net.emb->weight.grad(), reference.emb->weight.grad(), "the sum of both uses", 1e-12);
        optimizer.step();
        expected.step();
      }
      check(net.out->weight.is_same(net.emb->weight), "still one");
      check_close(net.emb->weight, reference.emb->weight, "after three steps", 1e-10);
    }
    Net net;
    check_contains(refusal_of<PlanError>([&] {
                     parallelize_module(net, mesh, plan_of({{"emb", ColwiseParallel()}, {"out", ColwiseParallel()}}));
                   }, "two cuts"), "out");
    check(!is_dtensor(net.emb->weight), "nothing changed");
  });
}

TEST_CASE("K49: whole logits into the sharded loss") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    for (const auto& placement : {Placement(Replicate()), Placement(Shard(1))}) {
      const auto logits = at::tensor({0., 1., 2., 3.}, at::kDouble).view({1, 4});
      auto placed = leaf(logits, mesh, {placement});
      const auto loss = at::cross_entropy_loss(placed, place(at::tensor({3}, at::kLong), mesh, {Replicate()}));
      check(std::abs(whole(loss).item<double>() - 0.440190) < 1e-6, "loss");
      loss.backward();
      check_close(placed.grad(), logits.softmax(1) - at::tensor({0., 0., 0., 1.}, at::kDouble), "softmax minus one-hot", 1e-12);
    }
  });
}
