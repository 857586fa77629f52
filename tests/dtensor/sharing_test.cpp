// What shares memory with what: traps 1, 3, 6, 9 and 12 of DESIGN section 5.
#include <dtensor/meta.h>
#include <support/check.h>
#include <torch/csrc/autograd/custom_function.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return dtensor::detail::meta(a).local.data_ptr() == dtensor::detail::meta(b).local.data_ptr();
}

// Hands one gradient to both inputs.
struct BothInputs : torch::autograd::Function<BothInputs> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& a, const at::Tensor& b) {
    return a + b;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list g) {
    return {g[0], DTensor(g[0]).redistribute(DTensor(g[0]).placements())};
  }
};

}  // namespace

TEST_CASE("trap 1: a redistribute that moves nothing is the same tensor") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Shard(0), Replicate(), Partial()}) {
      const auto x = place(values({4, 2}), line(2), {placement});
      check(x.redistribute({placement}).is_same(x), placement.to_string());
    }
  });
}

TEST_CASE("trap 1: a redistribute to another placement never shares memory, not even on a mesh of one") {
  for (int ranks : {1, 2})
    run_ranks(ranks, [ranks](int) {
      for (const auto& from : {Shard(0), Replicate(), Partial(), Partial(ReduceOp::max)})
        for (const auto& to : {Shard(0), Shard(1), Replicate(), Partial(), Partial(ReduceOp::avg)}) {
          if (from == to) continue;
          const auto x = place(values({4, 2}), line(ranks), {from});
          auto moved = x.redistribute({to});
          check(!share_memory(x, moved), from.to_string() + " -> " + to.to_string());
          const auto local = moved.to_local();
          check(local.storage().nbytes() == local.nbytes(), "no larger storage kept alive");
          moved.zero_();
          check_close(x, values({4, 2}), "the source is as it was");
        }
    });
}

TEST_CASE("trap 1: gradients do not share memory, whatever autograd steals") {
  for (int ranks : {1, 2})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      for (const auto& pa : {Shard(0), Shard(1), Replicate()})
        for (const auto& pb : {Shard(0), Replicate()})
          for (int variant = 0; variant < 3; ++variant) {
            auto a = leaf(values({4, 2}), mesh, {pa}), b = leaf(values({4, 2}, 1), mesh, {pb});
            const auto root = place(at::ones({4, 2}, at::kDouble), mesh, {pa});
            for (int step = 0; step < 2; ++step) {
              if (variant == 0) BothInputs::apply(a, b).backward(root);
              if (variant == 1) (a + b).backward(root);
              if (variant == 2) (a.redistribute({Replicate()}) + b).backward(root);
            }
            check_close(a.grad(), at::full({4, 2}, 2, at::kDouble), "a after two steps");
            check_close(b.grad(), at::full({4, 2}, 2, at::kDouble), "b after two steps");
            a.mutable_grad().mul_(5);
            check_close(b.grad(), at::full({4, 2}, 2, at::kDouble), "b after writing to a's");
            check_close(root, at::ones({4, 2}, at::kDouble), "the root gradient");
          }
    });
}

TEST_CASE("trap 1: a stock operator that returns its argument does not make a second wrapper of one memory") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Shard(0), Replicate()}) {
      const auto x = place(values({4, 2}), line(2), {placement});
      check(!share_memory(std::get<0>(at::native_dropout(x, 0.5, false)), x), "native_dropout in evaluation");
      check(!share_memory(x.clone(), x) && !share_memory(x + 0, x), "clone, add");
      check(share_memory(x.detach(), x) && share_memory(x.t(), x) && share_memory(x.alias(), x),
            "views do share");
      check(x.contiguous().is_same(x) && x.to(at::kDouble).is_same(x),
            "what does nothing is the same tensor");
    }
  });
}

TEST_CASE("trap 3: a view that had to move data may be read, but not written to") {
  run_ranks(2, [](int) {
    auto x = place(values({4, 3}), line(2), {Shard(0)});
    auto row = x.select(0, 3), some = x.slice(0, 1, 3);
    check_close(row, values({4, 3}).select(0, 3), "select on the sharded dimension");
    check_close(some + 1, values({4, 3}).slice(0, 1, 3) + 1, "slice on the sharded dimension");
    check_contains(refusal_of<UnsupportedError>([&] { row.mul_(2); }, "write"), "view");
    refusal_of<UnsupportedError>([&] { some.zero_(); }, "write");
    refusal_of<UnsupportedError>([&] { row.unsqueeze(0).add_(1); }, "a view of it is one too");
    check_close(x, values({4, 3}), "nothing was written");
    x.mul_(2);
    check_contains(refusal_of<UnsupportedError>([&] { row + 1; }, "read after the base changed"), "changed");
    refusal_of<UnsupportedError>([&] { static_cast<void>(as_dtensor(row).full_tensor()); }, "full_tensor");
    refusal_of<UnsupportedError>([&] { static_cast<void>(as_dtensor(row).to_local()); }, "to_local");
    refusal_of<UnsupportedError>([&] { static_cast<void>(as_dtensor(some).redistribute({Shard(1)})); },
                                 "redistribute");
    check_close(x.select(0, 3), values({4, 3}).select(0, 3) * 2, "taken anew");
    auto copied = x.select(0, 3).clone();
    copied.mul_(2);
    check_close(copied, values({4, 3}).select(0, 3) * 4, "a clone may be written to");
    check_contains(explain(row), "had to move data");
  });
}

TEST_CASE("trap 3: the same in inference mode and under NoGrad") {
  run_ranks(2, [](int) {
    for (bool inference : {false, true}) {
      const c10::InferenceMode mode(inference);
      const at::NoGradGuard no_grad;
      auto x = place(values({4, 3}), line(2), {Shard(0)});
      const auto row = x.select(0, 3);
      x.mul_(2);
      error_of<UnsupportedError>([&] { row + 1; }, "read after the base changed");
      auto y = place(values({4, 3}), line(2), {Shard(1)});
      auto view = y.select(0, 3);
      y.mul_(2);
      check_close(view, values({4, 3}).select(0, 3) * 2, "a view that did not move follows its base");
      view.zero_();
      check_close(y.select(0, 3), at::zeros({3}, at::kDouble), "and is written through");
    }
  });
}

TEST_CASE("trap 6: an in-place write after saving is noticed, through wrapper and local tensor alike") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto noticed = [](const at::Tensor& result) {
      check_contains(error_of<c10::Error>([&] { result.sum().backward(); }, "a stale saved tensor"),
                     "modified by an inplace");
    };
    {
      auto x = leaf(values({4, 2}), mesh, {Shard(0)});
      const auto h = x * 1;
      const auto y = h * h;
      const at::NoGradGuard no_grad;
      as_dtensor(h).to_local().mul_(10);
      const at::AutoGradMode with_grad(true);
      noticed(y);
    }
    {
      auto local = values({2, 2}).set_requires_grad(true);
      const auto h = local * 1;
      const auto y = h * h;
      {
        const at::NoGradGuard no_grad;
        from_local(h, mesh, {Shard(0)}, {.even = true}).mul_(10);
      }
      noticed(y);
    }
    {
      auto x = leaf(values({4, 2}), mesh, {Shard(0)});
      const auto y = x.exp();
      y.add_(1);
      noticed(y);
    }
  });
}

TEST_CASE("trap 9: geometry changed in place stays with its wrapper") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
      const auto check_change = [&](const char* name, const std::function<void(at::Tensor&)>& change) {
        const auto text = std::string(name) + " " + placement.to_string();
        const at::Tensor x = place(values({8, 4}), line(2), {placement});
        at::Tensor plain = values({8, 4}), other = x.data();
        change(plain);
        change(other);
        check(other.strides() == plain.strides(), text + ": strides");
        check_close(other, plain, text);
        check_close(other + 1, plain + 1, text + ", then add");
        check_close(x, values({8, 4}), text + ": the tensor that shares the local one");
        check_close(x * 2, values({8, 4}) * 2, text + ": and operators on it");
      };
      check_change("transpose_", [](at::Tensor& t) { t.transpose_(0, 1); });
      check_change("t_", [](at::Tensor& t) { t.t_(); });
      check_change("swapdims_", [](at::Tensor& t) { t.swapdims_(0, 1); });
      check_change("unsqueeze_", [](at::Tensor& t) { t.unsqueeze_(0); });
      check_change("unsqueeze_, squeeze_", [](at::Tensor& t) { t.unsqueeze_(0).squeeze_(0); });
      check_change("unsqueeze_, squeeze_ all", [](at::Tensor& t) { t.unsqueeze_(1).squeeze_(); });
    }
  });
}

TEST_CASE("trap 9: K18, squeeze_ changes label and data together or not at all") {
  run_ranks(2, [](int) {
    auto x = place(counting({1, 4}), line(2), {Shard(0)});
    try {
      x.squeeze_(0);
      check_close(x, counting({4}), "squeezed");
      check_close(x + 1, counting({4}) + 1, "then add");
    } catch (const UnsupportedError&) {
      check_close(x, counting({1, 4}), "refused: as it was");
    }
  });
}

TEST_CASE("trap 9: a tensor cannot be resized or given other memory, and stays as it was") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Replicate(), Shard(0)}) {
      auto x = place(values({8, 4}), line(2), {placement});
      error_of<c10::Error>([&] { x.resize_({4, 4}); }, "resize_");
      error_of<c10::Error>([&] { x.set_(); }, "set_");
      error_of<c10::Error>([&] { x.as_strided_({4, 4}, {4, 1}); }, "as_strided_");
      check_close(x, values({8, 4}), "as it was");
    }
  });
}

TEST_CASE("trap 12: an in-place operator never changes the placement of what it writes to") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    for (const auto& mine : {Shard(0), Shard(1), Replicate()})
      for (const auto& other : {Shard(0), Shard(1), Replicate(), Partial()}) {
        const auto text = mine.to_string() + " += " + other.to_string();
        auto x = place(values({4, 6}), mesh, {mine});
        const auto view = x.detach();
        x.add_(place(values({4, 6}, 1), mesh, {other}));
        check_placed(x, {mine}, text);
        check_close(x, values({4, 6}) + values({4, 6}, 1), text);
        check_close(view, values({4, 6}) + values({4, 6}, 1), text + ", seen through an alias");
        x.mul_(place(values({4, 6}, 1), mesh, {other}));
        check_close(view, (values({4, 6}) + values({4, 6}, 1)) * values({4, 6}, 1), text + ", then times");
        x.copy_(place(values({4, 6}, 2), mesh, {other}));
        check_close(view, values({4, 6}, 2), text + ", then copy_");
        check_placed(x, {mine}, text);
      }
  });
}
