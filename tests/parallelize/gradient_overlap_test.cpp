// Buckets of gradients that are summed while the backward pass still runs: when they start, and that the sums are right however
// the pass goes: gradients that come twice, branches, failures, gradients that are pending on other mesh dimensions, too.
#include <dtensor/all.h>
#include <parallelize/all.h>
#include <support/check.h>

#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

using namespace dtensor;

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// A norm, three layers and a scale; the backward pass meets them from the last to the first. The scale's bucket is the last, as
// parameters of the module itself come before those of its children.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor scale;
  NetImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 6));
    third = register_module("third", torch::nn::Linear(6, 4));
    scale = register_parameter("scale", torch::linspace(0.5, 1.5, 4));
    to(torch::kDouble);
  }
  // `between` sees what goes from the second layer to the third, and may replace it.
  at::Tensor forward(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& between = nullptr) {
    auto y = torch::tanh(second(torch::tanh(first(norm(x)))));
    if (between) y = between(y);
    return third(y) * scale;
  }
};
TORCH_MODULE(Net);

Net build() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(5);
  return Net();
}

ParallelPlan plan_of(double bucket_mb, bool tensor_parallel = false) {
  ParallelPlan plan;
  plan.data_parallel = DataParallel{};
  plan.data_parallel->bucket_mb = bucket_mb;
  if (tensor_parallel) {
    plan.rules = {{"norm", SequenceParallel(1)},
                  {"first", ColwiseParallel(Shard(1))},
                  {"second", RowwiseParallel({}, Shard(1))},
                  {"third", ReplicateParallel()}};
  }
  return plan;
}

// Every parameter a bucket of its own.
constexpr double tiny = 1e-6;

at::Tensor batch(int step = 0) { return torch::arange(5 * 4 * 4, torch::kDouble).add(7 * step).view({5, 4, 4}).cos(); }

at::Tensor on(const DeviceMesh& mesh, const at::Tensor& x) {
  std::vector<Placement> placements(static_cast<std::size_t>(mesh.ndim()), Replicate());
  placements[0] = Shard(0);
  return distribute_tensor(x, mesh, placements, {.source = std::nullopt});
}

void expect_equal_gradients(const Net& model, const Net& reference, const std::string& when, double tolerance = 1e-12) {
  for (const auto& item : model->named_parameters()) {
    const auto right = reference->named_parameters()[item.key()].grad();
    const auto gradient = item.value().grad();
    expect(gradient.defined() == right.defined(), when + ": " + item.key() + " has a gradient, or should have one");
    if (!right.defined()) continue;
    expect(as_dtensor(gradient).placements() == as_dtensor(item.value()).placements(),
           when + ": the gradient of " + item.key() + " is placed otherwise than its parameter");
    expect(torch::allclose(as_dtensor(gradient).full_tensor(), right, tolerance, tolerance / 100), when + ": gradients of " + item.key() + " differ");
  }
}

std::int64_t sums_over(const CollectiveCounter& counter, const char* dim) {
  return counter.count(Collective::all_reduce, dim, "gradient");
}

// The identity, whose backward does something.
struct During : torch::autograd::Function<During> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t action) {
    context->saved_data["action"] = action;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    (*reinterpret_cast<std::function<void()>*>(context->saved_data["action"].toInt()))();
    return {gradients[0], at::Tensor()};
  }
};

std::function<at::Tensor(const at::Tensor&)> during_backward(std::function<void()>& action) {
  return [&action](const at::Tensor& x) { return During::apply(x, reinterpret_cast<std::int64_t>(&action)); };
}

// A checkpoint: the inner graph is made and differentiated in the backward pass of this one.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t inner) {
    context->saved_data["inner"] = inner;
    context->save_for_backward({x});
    return run(inner, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_(true);
    {
      const at::AutoGradMode on(true);
      torch::autograd::backward({run(context->saved_data["inner"].toInt(), x)}, {gradients[0]});
    }
    return {x.grad(), at::Tensor()};
  }
  static at::Tensor run(std::int64_t inner, const at::Tensor& x) {
    return (*reinterpret_cast<std::function<at::Tensor(const at::Tensor&)>*>(inner))(x);
  }
};

}  // namespace

TEST_CASE("buckets start in the middle of the backward pass, in order, the last one at its end") {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](int) {
      const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"dp"});
      auto model = build(), reference = build();
      parallelize_module(*model, mesh, plan_of(tiny));
      for (int step = 0; step < 3; ++step) {
        const CollectiveCounter counter;
        std::int64_t early = -1;
        std::function<void()> look = [&] { early = sums_over(counter, "dp"); };
        model->zero_grad();
        reference->zero_grad();
        model->forward(on(mesh, batch(step)), during_backward(look)).pow(2).mean().backward();
        reference->forward(batch(step)).pow(2).mean().backward();
        expect(early == 2, "before the second layer the third layer's weight and bias were sent: " + std::to_string(early));
        expect(sums_over(counter, "dp") == 9 && counter.total() == 9, counter.to_string());
        expect_equal_gradients(model, reference, "step " + std::to_string(step));
      }
    });
}

TEST_CASE("gradients pending on the tensor-parallel dimension, too, are summed early over the data-parallel one") {
  run_ranks(4, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    auto model = build(), reference = build();
    parallelize_module(*model, mesh, plan_of(tiny, true));
    for (int step = 0; step < 3; ++step) {
      const CollectiveCounter counter;
      std::int64_t early = -1;
      std::function<void()> look = [&] { early = sums_over(counter, "dp"); };
      if (step != 1) model->zero_grad(), reference->zero_grad();  // step 1 accumulates
      model->forward(on(mesh, batch(step)), during_backward(look)).pow(2).mean().backward();
      reference->forward(batch(step)).pow(2).mean().backward();
      // The first pass finds out which gradients are pending where.
      expect(early == (step == 0 ? 0 : 2), "sent early in step " + std::to_string(step) + ": " + std::to_string(early));
      expect(sums_over(counter, "dp") == (step == 0 ? 10 : 9), counter.to_string());
      expect(sums_over(counter, "tp") == 6, "the norm, the rowwise bias, the third layer, the scale: " + counter.to_string());
      expect_equal_gradients(model, reference, "step " + std::to_string(step));
    }
  });
}

TEST_CASE("a gradient that comes again after its bucket was sent is summed once more") {
  const bool tensor_parallel = GENERATE(false, true);
  const std::string reduce_dtype = GENERATE("", "float32");  // in the gradients' place, and beside them
  const double tolerance = reduce_dtype.empty() ? 1e-12 : 1e-5;
  run_ranks(tensor_parallel ? 4 : 2, [&](int rank) {
    const auto mesh = tensor_parallel ? init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"}) : init_device_mesh(torch::kCPU, {2}, {"dp"});
    const int dp_coordinate = tensor_parallel ? rank / 2 : rank;
    auto model = build(), reference = build();
    auto plan = plan_of(tiny, tensor_parallel);
    plan.data_parallel->reduce_dtype = reduce_dtype;
    parallelize_module(*model, mesh, plan);
    // The third layer is used inside a checkpoint, whose backward pass runs within the outer one, and before it.
    const auto backward = [](Net& net, const at::Tensor& x, bool twice) {
      std::function<at::Tensor(const at::Tensor&)> inner = [&net](const at::Tensor& y) { return net->third(y).tanh(); };
      const auto hidden = torch::tanh(net->second(torch::tanh(net->first(net->norm(x)))));
      const auto middle = twice ? torch::cat({net->third(hidden), net->third(hidden)}, -1).slice(-1, 0, 6) : hidden;
      const auto end = Checkpointed::apply(middle, reinterpret_cast<std::int64_t>(&inner));
      (end * net->scale).pow(2).sum().backward();
    };
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      reference->zero_grad();
      const CollectiveCounter counter;
      backward(model, on(mesh, batch(step)), true);
      backward(reference, batch(step), true);
      if (!tensor_parallel) expect(sums_over(counter, "dp") == 9 + 2, "the third layer's two buckets were sent twice: " + counter.to_string());
      expect_equal_gradients(model, reference, "step " + std::to_string(step), tolerance);
    }
    for (int step = 3; step < 6; ++step) {
      model->zero_grad();
      reference->zero_grad();
      const auto x = batch(step);
      backward(model, on(mesh, x), dp_coordinate == 0);
      backward(reference, x.slice(0, 0, 3), true);
      backward(reference, x.slice(0, 3, 5), false);
      expect_equal_gradients(model, reference, "twice on one rank only", tolerance);
    }
  });
}

TEST_CASE("data-parallel ranks that take different branches") {
  const double bucket_mb = GENERATE(tiny, 25.0);
  run_ranks(4, [&](int rank) {
    const auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    auto model = build(), reference = build();
    parallelize_module(*model, mesh, plan_of(bucket_mb, true));
    const auto hidden = [](Net& net, const at::Tensor& x) { return torch::tanh(net->second(torch::tanh(net->first(net->norm(x))))); };
    for (int step = 0; step < 5; ++step) {
      model->zero_grad();
      reference->zero_grad();
      const auto x = batch(step);
      auto y = hidden(model, on(mesh, x));
      if (step < 3) {
        // The third layer on one of the two only; its gradients are pending on the tensor-parallel dimension there.
        ((rank / 2 == step % 2) ? model->third(y) : y).pow(2).sum().backward();
        for (const bool uses : {true, false}) {
          const auto part = (step % 2 == 0) == uses ? x.slice(0, 0, 3) : x.slice(0, 3, 5);
          const auto z = hidden(reference, part);
          (uses ? reference->third(z) : z).pow(2).sum().backward();
        }
      } else {
        // On both, but whole on the tensor-parallel dimension on one of them, pending on the other.
        if (rank / 2 == step % 2) {
          y = as_dtensor(y).redistribute({Shard(0), Replicate()});
          (torch::linear(y, model->third->weight, model->third->bias) * model->scale).pow(2).sum().backward();
        } else {
          (model->third(y) * model->scale).pow(2).sum().backward();
        }
        reference->forward(x).pow(2).sum().backward();
      }
      expect_equal_gradients(model, reference, "step " + std::to_string(step));
    }
  });
}

TEST_CASE("NoGradientSync with buckets that are sent early") {
  run_ranks(4, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    auto model = build(), reference = build();
    parallelize_module(*model, mesh, plan_of(tiny, true));
    const auto step = [&](int number) {
      model->forward(on(mesh, batch(number))).pow(2).sum().backward();
      reference->forward(batch(number)).pow(2).sum().backward();
    };
    for (int round = 0; round < 2; ++round) {
      {
        const NoGradientSync guard(*model);
        const CollectiveCounter counter;
        step(3 * round);
        step(3 * round + 1);
        expect(sums_over(counter, "dp") == 0, counter.to_string());
      }
      step(3 * round + 2);
      expect_equal_gradients(model, reference, "round " + std::to_string(round));
    }
  });
}

TEST_CASE("after a backward pass that failed the next one is right") {
  const double bucket_mb = GENERATE(tiny, 25.0);
  run_ranks(4, [&](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    auto model = build(), reference = build();
    parallelize_module(*model, mesh, plan_of(bucket_mb, true));
    std::function<void()> fail = [] { throw std::runtime_error("out of memory"); };
    for (int step = 0; step < 3; ++step) {
      for (int attempt = 0; attempt < 2; ++attempt) {
        model->zero_grad();
        bool has_failed = false;
        try {
          model->forward(on(mesh, batch(9)), during_backward(fail)).pow(2).sum().backward();
        } catch (const std::runtime_error& error) {
          has_failed = std::string(error.what()).find("out of memory") != std::string::npos;
        }
        expect(has_failed, "the failure comes through");
      }
      model->zero_grad();
      reference->zero_grad();
      model->forward(on(mesh, batch(step))).pow(2).sum().backward();
      reference->forward(batch(step)).pow(2).sum().backward();
      expect_equal_gradients(model, reference, "step " + std::to_string(step));
    }
  });
}

TEST_CASE("ranks whose backward passes failed at different places are told") {
  run_ranks(2, [](int rank) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"dp"});
    auto model = build();
    parallelize_module(*model, mesh, plan_of(tiny));
    std::function<void()> fail = [] { throw std::runtime_error("out of memory"); };
    const auto mark = during_backward(fail);
    bool has_failed = false;
    try {
      const auto x = on(mesh, batch());
      auto y = rank == 0 ? model->forward(x, mark) : mark(model->forward(x));  // after two buckets, before all
      y.pow(2).sum().backward();
    } catch (const std::runtime_error& error) {
      has_failed = std::string(error.what()).find("out of memory") != std::string::npos;
    }
    expect(has_failed, "the failure comes through");
    model->zero_grad();
    try {
      model->forward(on(mesh, batch())).pow(2).sum().backward();
    } catch (const DesyncError& error) {
      const std::string text = error.what();
      for (const char* part : {"mesh dimension 'dp'", "an earlier backward pass failed on some ranks", "go on from a checkpoint"})
        expect(text.find(part) != std::string::npos, text);
      return;
    }
    throw std::runtime_error("not refused");
  });
}

TEST_CASE("bucket_mb auto: measured, the same on all ranks") {
  run_ranks(4, [](int) {
    const auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    auto model = build(), reference = build();
    const CollectiveCounter apply;
    parallelize_module(*model, mesh, plan_of(DataParallel::bucket_mb_auto, true));
    expect(apply.count(Collective::all_reduce, "dp", "measurement") > 0, apply.to_string());
    const CollectiveCounter counter;
    model->forward(on(mesh, batch())).pow(2).sum().backward();
    reference->forward(batch()).pow(2).sum().backward();
    expect(sums_over(counter, "dp") == 2, "one bucket of at least a megabyte, and the agreement: " + counter.to_string());
    expect_equal_gradients(model, reference, "measured");
  });
}

TEST_CASE("a rank outside the mesh applies the plan, too") {
  const double bucket_mb = GENERATE(tiny, double{DataParallel::bucket_mb_auto});
  run_ranks(3, [&](int rank) {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"dp"});
    auto model = build(), reference = build();
    const CollectiveCounter counter;
    parallelize_module(*model, mesh, plan_of(bucket_mb));
    if (rank == 2) {
      expect(counter.total() == 0, counter.to_string());
      return;
    }
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      reference->zero_grad();
      model->forward(on(mesh, batch(step))).pow(2).sum().backward();
      reference->forward(batch(step)).pow(2).sum().backward();
      expect_equal_gradients(model, reference, "step " + std::to_string(step));
    }
  });
}
