// The functions that make a DTensor, place it and read it: DESIGN section 3's table, row by row.
#include <placements/shard_math.h>
#include <support/check.h>
#include <torch/csrc/distributed/Placement.h>  // trap 19: torch::distributed has names of ours
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

TEST_CASE("distribute_tensor: the values of the source coordinate win along each mesh dimension") {
  run_ranks(4, [](int rank) {
    const auto mesh = grid(2, 2);
    const auto base = counting({4, 6});
    for (const Placements& placements :
         {Placements{Shard(0), Replicate()}, {Shard(1), Shard(0)}, {Partial(), Shard(1)}}) {
      check_close(distribute_tensor(base + rank, mesh, placements), base, "rank 0's values");
      check_close(distribute_tensor(base + rank, mesh, placements, {1}), base + 3, "rank 3's values");
    }
    const CollectiveCounter counter;
    const auto trusted = distribute_tensor(base + rank, mesh, {Shard(0), Replicate()}, {std::nullopt});
    check(counter.total() == 0, "source = none sends nothing");
    check_close(trusted.to_local(), base.narrow(0, 2 * (rank / 2), 2) + rank,
                "source = none keeps this rank's values");
  });
}

TEST_CASE("distribute_tensor: shards are copies and keep no more memory than they need") {
  run_ranks(2, [](int) {
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      auto full = counting({4, 6});
      const auto tensor = place(full, line(2), {placement});
      full.zero_();
      check_close(tensor, counting({4, 6}), "writing to the full tensor");
      const auto local = tensor.to_local();
      check(local.storage().nbytes() == local.nbytes(), "the local tensor's storage is its own");
    }
  });
}

TEST_CASE("distribute_tensor refuses what does not fit, on all ranks") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = counting({4, 6});
    refusal_of<PlacementError>(
        [&] {
          distribute_tensor(full, mesh, {Shard(0), Replicate()});
        },
        "too many placements");
    refusal_of<PlacementError>([&] { distribute_tensor(full, mesh, {Shard(2)}); }, "no such dimension");
    refusal_of<PlacementError>([&] { distribute_tensor(full, mesh, {Shard(-3)}); }, "no such dimension");
    refusal_of<MeshError>([&] { distribute_tensor(full, mesh, {Shard(0)}, {2}); }, "no such source");
    refusal_of<UnsupportedError>([&] { distribute_tensor(place(full, mesh, {Shard(0)}), mesh, {Shard(0)}); },
                                 "a DTensor");
    refusal_of<MeshError>([&] { distribute_tensor(full.to(at::kMeta), mesh, {Shard(0)}); }, "another device");
    error_of<UnsupportedError>([&] { DTensor{full}; }, "DTensor of a plain tensor");
    check(!try_dtensor(full) && try_dtensor(place(full, mesh, {Shard(0)})), "try_dtensor");
  });
}

TEST_CASE("distribute_tensor is differentiable, from leaves and others") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto weights = values({5, 3}, 1);
    for (const auto source : {std::optional<int>(0), std::optional<int>()})
      for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
        auto x = values({5, 3}).set_requires_grad(true);
        const auto tensor = distribute_tensor(x * 2, mesh, {placement}, {source});
        (tensor * place(weights, mesh, {Replicate()})).sum().backward();
        check(!is_dtensor(x.grad()), "the gradient of a plain leaf is plain");
        check_close(x.grad(), weights * 2, "gradient");
      }
  });
}

TEST_CASE("distribute_tensor: another rank's values replace this rank's exactly, and the gradient is this rank's") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    auto x = (rank == 0 ? values({4, 3}) : at::full({4, 3}, HUGE_VAL, at::kDouble)).set_requires_grad(true);
    const auto scaled = x * (rank + 1);
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      x.mutable_grad() = at::Tensor();
      const auto tensor = distribute_tensor(scaled, mesh, {placement}, {0});
      check(at::equal(tensor.full_tensor(), values({4, 3})), "the values of rank 0, bit by bit");
      (tensor * place(values({4, 3}, 1), mesh, {Replicate()})).sum().backward({}, /*retain_graph=*/true);
      check_close(x.grad(), values({4, 3}, 1) * (rank + 1), "gradient");
    }
  });
}

TEST_CASE("to_local aliases the local tensor and shares its version") {
  run_ranks(2, [](int) {
    const auto tensor = place(counting({4, 6}), line(2), {Shard(0)});
    auto local = tensor.to_local();
    check(local.data_ptr() == tensor.to_local().data_ptr(), "one memory");
    const auto before = tensor._version();
    local.mul_(2);
    check(tensor._version() == before + 1 && local._version() == tensor._version(), "one version counter");
    check_close(tensor, counting({4, 6}) * 2, "written through");
  });
}

TEST_CASE("to_local: the gradient's placements") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto full = values({4, 3});
    auto sharded = leaf(full, mesh, {Shard(0)});
    (sharded.to_local() * (rank + 1)).sum().backward();
    check_placed(sharded.grad(), {Shard(0)}, "the gradient of a shard is a shard");
    check_close(sharded.grad(), at::cat({at::ones({2, 3}), at::full({2, 3}, 2)}).to(at::kDouble), "shard");

    auto pending = leaf(full, mesh, {Partial()});
    (pending.to_local() * 3).sum().backward();
    check_placed(pending.grad(), {Replicate()}, "the gradient of a pending tensor is replicated");
    check_close(pending.grad(), at::full({4, 3}, 3, at::kDouble), "pending");

    auto whole_one = leaf(full, mesh, {Replicate()});
    check_contains(refusal_of<UnsupportedError>([&] { whole_one.to_local(); }, "unstated"),
                   "grad_placements");
    {
      const at::NoGradGuard no_grad;
      whole_one.to_local();  // no gradient, nothing to state
    }
    place(full, mesh, {Replicate()}).to_local();
    whole_one.to_local({Placements{Replicate()}}).sum().backward();
    check_close(whole_one.grad(), at::ones({4, 3}, at::kDouble), "stated: every rank computes the same");
    whole_one.mutable_grad() = at::Tensor();
    (whole_one.to_local({Placements{Partial()}}) * (rank + 1)).sum().backward();
    check_close(whole_one.grad(), at::full({4, 3}, 3, at::kDouble), "stated: each rank computes a part");
    error_of<PlacementError>(
        [&] {
          whole_one.to_local({Placements{Shard(0), Shard(1)}});
        },
        "one entry too many");
  });
  run_ranks(1, [](int) {
    auto x = leaf(values({4, 3}), line(1), {Replicate()});
    x.to_local().sum().backward();  // one rank: nothing to state
    check_close(x.grad(), at::ones({4, 3}, at::kDouble), "mesh of one");
  });
}

TEST_CASE("full_tensor: a plain tensor on all ranks, whose gradient counts as replicated") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    const auto weights = values({5, 3}, 2);
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial(), Partial(ReduceOp::avg)}) {
      auto x = leaf(values({5, 3}), mesh, {placement});
      const auto full = x.full_tensor();
      check(!is_dtensor(full), "plain");
      check_close(full, values({5, 3}), "value");
      (full * weights).sum().backward();
      check_close(x.grad(), weights, "gradient of " + placement.to_string());
      check_placed(x.grad(), {placement.is_partial() ? Replicate() : placement}, "gradient");
    }
    auto x = place(values({5, 3}), mesh, {Replicate()});
    x.full_tensor().zero_();
    check_close(x, values({5, 3}), "what full_tensor returns is not the replica itself");
  });
}

TEST_CASE("from_local wraps without copying, finds global sizes and refuses parts that do not fit") {
  run_ranks(3, [](int rank) {
    const auto mesh = line(3);
    const auto full = counting({7, 2});
    const auto uneven = full.narrow(0, 3 * rank, rank == 2 ? 1 : 3).clone();
    CollectiveCounter counter;
    auto tensor = from_local(uneven, mesh, {Shard(0)});
    check(counter.total() == 1, "one exchange of sizes");
    check(tensor.sizes() == full.sizes(), "global sizes");
    check_close(tensor, full, "uneven");
    check(tensor.to_local().data_ptr() == uneven.data_ptr(), "no copy");
    tensor.add_(1);
    check(uneven._version() == tensor._version(), "one version counter");
    check_close(uneven, full.narrow(0, 3 * rank, uneven.size(0)) + 1, "written through");

    counter.reset();
    from_local(uneven, mesh, {Shard(0)}, {.global_sizes = std::vector<std::int64_t>{7, 2}});
    from_local(at::ones({2, 2}), mesh, {Shard(1)}, {.even = true});
    from_local(at::ones({2, 2}), mesh, {Replicate()});
    from_local(at::ones({2, 2}), mesh, {Partial()});
    check(counter.total() == 0, "sizes given, even parts, nothing cut: no exchange");
    check(from_local(at::ones({2, 2}), mesh, {Shard(1)}, {.even = true}).size(1) == 6, "even");

    error_of<PlacementError>([&] { from_local(at::ones({rank + 1, 2}), mesh, {Shard(0)}); }, "1, 2, 3 rows");
    error_of<PlacementError>(
        [&] {
          from_local(at::ones({rank == 1 ? 0 : 2, 2}), mesh, {Shard(0)});
        },
        "2, 0, 2 rows");
    check_close(from_local(at::ones({rank == 0 ? 1 : 0, 2}), mesh, {Shard(0)}), at::ones({1, 2}),
                "empty parts");
    error_of<PlacementError>(
        [&] {
          from_local(at::ones({4, 2}), mesh, {Shard(0)}, {.global_sizes = std::vector<std::int64_t>{7, 2}});
        },
        "sizes that do not fit");
    error_of<UnsupportedError>([&] { from_local(tensor, mesh, {Shard(0)}); },
                               "a DTensor cannot be a local tensor");
  });
}

TEST_CASE("from_local on a grid: sizes of nested cuts") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{5, 3}, {4, 4}, {1, 7}, {7, 2}})
      for (const Placements& placements : {Placements{Shard(0), Shard(0)},
                                           {Shard(0), Shard(1)},
                                           {Shard(1), Partial()},
                                           {Replicate(), Shard(1)}}) {
        const auto full = values(sizes);
        const auto local = place(full, mesh, placements).to_local().clone();
        check_close(from_local(local, mesh, placements), full, to_string(placements));
      }
  });
}

TEST_CASE("from_local: the gradient of a pending tensor is replicated, of a shard its part") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto weights = values({4, 2}, 3);
    for (const auto& placement : {Partial(), Replicate(), Shard(0)}) {
      auto local = at::ones({placement.is_shard() ? 2 : 4, 2}, at::kDouble).set_requires_grad(true);
      (from_local(local, mesh, {placement}) * place(weights, mesh, {Replicate()})).sum().backward();
      check(!is_dtensor(local.grad()), "plain");
      check_close(local.grad(), placement.is_shard() ? weights.narrow(0, 2 * rank, 2) : weights,
                  placement.to_string());
    }
  });
}

TEST_CASE("Shard(-1) is normalised wherever it enters, and never comes out") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto tensor = distribute_tensor(counting({4, 6}), mesh, {Shard(-1)});
    check_placed(tensor, {Shard(1)}, "distribute_tensor");
    check_placed(from_local(at::ones({4, 3}), mesh, {Shard(-2)}), {Shard(0)}, "from_local");
    check_placed(zeros({2, 2, 2}, mesh, {Shard(-1)}), {Shard(2)}, "zeros");
    const CollectiveCounter counter;
    check(tensor.redistribute({Shard(-1)}).is_same(tensor), "placed so already: the same tensor");
    check(constrain(tensor, {Shard(-1)}).is_same(tensor), "constrain too");
    check(counter.total() == 0, "nothing moved");
    error_of<PlacementError>([&] { tensor.redistribute({Shard(2)}); }, "no such dimension");
    error_of<PlacementError>([&] { tensor.redistribute({Shard(0), Shard(0)}); }, "one entry too many");
  });
}

TEST_CASE("trap 19: placements beside torch::distributed's, whose names are the same") {
  using namespace torch;  // as in most programs
  static_assert(!std::is_same_v<decltype(dtensor::Shard(0)), torch::distributed::Shard>);
  run_ranks(2, [](int) {
    const auto tensor = place(values({3, 2}), line(2), {Shard(0)});
    check_placed(tensor, {Shard(0)}, "the unqualified names are dtensor's");
  });
}

TEST_CASE("distribute_batch: each data-parallel coordinate brings its part") {
  run_ranks(4, [](int rank) {
    const auto mesh = grid(2, 2);
    const auto part = at::full({3, 2}, rank / 2, at::kDouble);
    const auto batch = distribute_batch(part, mesh);
    check_placed(batch, {Shard(0), Replicate()}, "placements");
    check_close(batch, at::cat({at::zeros({3, 2}), at::ones({3, 2})}).to(at::kDouble), "values");
    error_of<MeshError>([&] { distribute_batch(part, mesh, "pp"); }, "no such mesh dimension");
  });
}

TEST_CASE("factories: values, dtype and placements, pending ones included") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    for (const Placements& placements : {Placements{Shard(0), Shard(1)},
                                         {Shard(0), Shard(0)},
                                         {Partial(), Replicate()},
                                         {Partial(ReduceOp::avg), Shard(1)},
                                         {Partial(ReduceOp::max), Partial(ReduceOp::max)}}) {
      const auto options = at::TensorOptions().dtype(at::kDouble);
      check_close(zeros({5, 3}, mesh, placements, options), at::zeros({5, 3}, options), "zeros");
      check_close(ones({5, 3}, mesh, placements, options), at::ones({5, 3}, options), "ones");
      check_close(full({5, 3}, 2.5, mesh, placements, options), at::full({5, 3}, 2.5, options), "full");
      check_placed(empty({5, 3}, mesh, placements, options), placements, "empty");
      check_placed(randn({5, 3}, mesh, placements, options), placements, "randn");
    }
    check(ones({2}, mesh, {Shard(0), Replicate()}).scalar_type() == at::kFloat, "default dtype");
    const auto parameter = zeros({4}, mesh, {Shard(0), Replicate()}, at::TensorOptions().requires_grad(true));
    check(parameter.requires_grad() && parameter.is_leaf(), "a leaf that requires grad");
    refusal_of<MeshError>(
        [&] {
          zeros({4}, mesh, {Shard(0), Replicate()}, at::TensorOptions(at::kMeta));
        },
        "another device");
  });
}

TEST_CASE("a mesh dimension of size 1 keeps the placement asked for and moves nothing") {
  run_ranks(2, [](int) {
    const auto mesh = grid(1, 2);
    const auto full = values({4, 6});
    const std::vector<Placement> kinds = {Replicate(), Shard(0), Shard(1), Partial(), Partial(ReduceOp::max)};
    for (const auto& from : kinds)
      for (const auto& to : kinds) {
        const auto tensor = place(full, mesh, {from, Shard(1)});
        const CollectiveCounter counter;
        const auto moved = tensor.redistribute({to, Shard(1)});
        check(counter.total() == 0, "free");
        check_placed(moved, {to, Shard(1)}, "kept");
        check_close(moved, full, "values");
        check_close(torch::relu(moved), torch::relu(full), "an operator on it");
      }
  });
}

TEST_CASE("tensors of different meshes do not meet") {
  run_ranks(4, [](int) {
    const auto a = place(counting({4, 4}), line(4), {Shard(0)});
    const auto b = place(counting({4, 4}), grid(2, 2), {Shard(0), Shard(1)});
    const auto text = refusal_of<MeshError>([&] { a + b; }, "add");
    check_contains(text, a.mesh().to_string());
    check_contains(text, b.mesh().to_string());
    refusal_of<MeshError>([&] { torch::matmul(a, b); }, "an override");
    const auto c = place(counting({4, 4}), line(4), {Shard(0)});
    check_close(a + c, counting({4, 4}) * 2, "equal meshes are one");
  });
}

TEST_CASE("ranks outside a mesh hold empty tensors and cannot read or compute") {
  run_ranks(3, [](int rank) {
    const auto mesh = line(2);
    const auto tensor = distribute_tensor(counting({4, 2}), mesh, {Shard(0)});
    const auto made = zeros({4, 2}, mesh, {Shard(0)});
    const auto drawn = randn({4, 2}, mesh, {Shard(0)});
    const auto wrapped = from_local(at::ones({2, 2}), mesh, {Shard(0)}, {.even = true});
    if (rank < 2) {
      check_close(tensor + 1, counting({4, 2}) + 1, "members compute");
      return;
    }
    check(tensor.to_local().numel() == 0 && made.to_local().numel() == 0 && wrapped.to_local().numel() == 0,
          "empty");
    error_of<MeshError>([&] { static_cast<void>(tensor.full_tensor()); }, "full_tensor");
    error_of<MeshError>([&] { tensor + 1; }, "add");
    error_of<MeshError>([&] { tensor.sum().item<double>(); }, "item");
    check(tensor.redistribute({Replicate()}).to_local().numel() == 0, "redistribute: empty again");
  });
}

TEST_CASE("a DTensor is a variable to torch::autograd::Function, whatever its static type") {
  struct Twice : torch::autograd::Function<Twice> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list g) {
      return {g[0] * 2};
    }
  };
  run_ranks(2, [](int) {
    auto x = leaf(values({4, 2}), line(2), {Shard(0)});
    Twice::apply(x).sum().backward();
    check_close(x.grad(), at::full({4, 2}, 2, at::kDouble), "DTensor");
    Twice::apply(static_cast<const at::Tensor&>(x)).sum().backward();
    check_close(x.grad(), at::full({4, 2}, 4, at::kDouble), "at::Tensor");
  });
}

TEST_CASE("constrain places a tensor, and its consumers share the move") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    auto x = leaf(values({4, 6}), mesh, {Shard(0)});
    CollectiveCounter counter;
    const auto a = constrain(x, {Replicate()}), b = constrain(x, {Replicate()});
    check(counter.count(Collective::all_gather) == 1, "one gather for two consumers");
    check_placed(a, {Replicate()}, "placed");
    (a * b).sum().backward();
    check_close(x.grad(), values({4, 6}) * 2, "gradient");
    {
      const at::NoGradGuard no_grad;
      x.add_(1);
    }
    counter.reset();
    check_close(constrain(x, {Replicate()}), values({4, 6}) + 1, "a changed tensor is moved anew");
    check(counter.count(Collective::all_gather) >= 1, "moved anew");
    error_of<UnsupportedError>([&] { constrain(values({2}), {Replicate()}); }, "a plain tensor");
  });
}
