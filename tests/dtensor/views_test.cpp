// Views, strides and view replay: traps 4 and 5 of DESIGN section 5.
#include <dtensor/fallback.h>
#include <support/check.h>
#include <torch/types.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

using Function = std::function<at::Tensor(at::Tensor)>;

// Sizes, strides and values of `function` on a DTensor are those of the plain tensor, on all ranks.
void check_geometry(const at::Tensor& full, const DeviceMesh& mesh, const Placement& placement,
                    const std::string& name, const Function& function) {
  const auto text = fmt::format("{} of [{}] {}", name, fmt::join(full.sizes(), ", "), placement.to_string());
  const auto expected = function(full), actual = function(place(full, mesh, {placement}));
  for (std::int64_t dim = 0; dim < expected.dim();
       ++dim)  // the stride of a dimension of size 1 means nothing
    check(expected.size(dim) == 1 || actual.stride(dim) == expected.stride(dim),
          fmt::format("{}: strides [{}] instead of [{}]", text, fmt::join(actual.strides(), ", "),
                      fmt::join(expected.strides(), ", ")));
  check(actual.is_contiguous() == expected.is_contiguous(), text + ": contiguous");
  check_close(actual, expected, text);
}

const std::vector<std::pair<const char*, Function>>& functions() {
  static const std::vector<std::pair<const char*, Function>> all = {
      {"t", [](at::Tensor x) { return x.t(); }},
      {"t + 1", [](at::Tensor x) { return x.t() + 1; }},
      {"t, contiguous", [](at::Tensor x) { return x.t().contiguous(); }},
      {"t, clone", [](at::Tensor x) { return x.t().clone(); }},
      {"t, empty_like", [](at::Tensor x) { return at::zeros_like(x.t()); }},
      {"t, reshape", [](at::Tensor x) { return x.t().reshape({-1}); }},
      {"reshape", [](at::Tensor x) { return x.reshape({-1}); }},
      {"t, flatten, + 1", [](at::Tensor x) { return x.t().flatten() + 1; }},
      {"unsqueeze, transpose", [](at::Tensor x) { return x.unsqueeze(1).transpose(0, 2); }},
      {"expand",
       [](at::Tensor x) {
         return x.unsqueeze(0).expand({3, -1, -1});
       }},
      {"expand, contiguous",
       [](at::Tensor x) {
         return x.unsqueeze(0).expand({3, -1, -1}).contiguous();
       }},
      {"narrow", [](at::Tensor x) { return x.narrow(1, 1, 2); }},
      {"narrow, contiguous", [](at::Tensor x) { return x.narrow(1, 1, 2).contiguous(); }},
      {"mm of t", [](at::Tensor x) { return x.mm(x.t()); }},
      {"sum keepdim", [](at::Tensor x) { return x.sum(1, true); }},
      {"softmax of t", [](at::Tensor x) { return x.t().softmax(0); }},
  };
  return all;
}

}  // namespace

TEST_CASE("trap 4: sizes and strides are global and the same on uneven and empty ranks") {
  for (int ranks : {2, 3})
    run_ranks(ranks, [ranks](int) {
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{5, 3}, {1, 4}, {4, 3}, {2, 7}})
        for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()})
          for (const auto& [name, function] : functions())
            check_geometry(values(sizes), line(ranks), placement, name, function);
    });
}

TEST_CASE("trap 4: from_local agrees on one memory order, whatever order a rank's part has") {
  run_ranks(2, [](int rank) {
    const auto local = values({3, 3}, rank);
    const auto tensor = from_local(rank == 0 ? local : local.t().contiguous().t(), line(2), {Shard(0)});
    check(tensor.is_contiguous(), "row-major on all ranks");
    check_close(tensor.reshape({-1}), at::cat({values({3, 3}, 0), values({3, 3}, 1)}).reshape({-1}),
                "reshape");
  });
}

TEST_CASE("trap 4: as_strided sees the global tensor, or is refused in place") {
  run_ranks(2, [](int) {
    PolicyGuard quiet({Fallback::allow, ImplicitMoves::allow, PlainTensors::error});
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      const auto x = place(values({8, 4}), line(2), {placement});
      const auto plain = values({8, 4});
      check_close(x.as_strided({4, 4}, {8, 1}), plain.as_strided({4, 4}, {8, 1}), placement.to_string());
      check_close(x.as_strided({4, 4}, {4, 1}, 4), plain.as_strided({4, 4}, {4, 1}, 4), "with an offset");
      check_close(x.t().as_strided({4, 4}, {1, 4}, 4), plain.t().as_strided({4, 4}, {1, 4}, 4),
                  "of a transposed tensor");
      const auto rows = x.narrow(0, 2, 4);
      check_close(rows.as_strided({2, 4}, {8, 1}, rows.storage_offset()),
                  plain.narrow(0, 2, 4).as_strided({2, 4}, {8, 1}, 8), "of a view, at its own offset");
      error_of<UnsupportedError>([&] { at::Tensor(x).as_strided_({4, 4}, {8, 1}); }, "in place");
      auto y = leaf(values({8, 4}), line(2), {placement});
      auto p = values({8, 4}).set_requires_grad(true);
      (y * 2).as_strided({4, 4}, {8, 1}).pow(2).sum().backward();
      (p * 2).as_strided({4, 4}, {8, 1}).pow(2).sum().backward();
      check_close(y.grad(), p.grad(), "gradient " + placement.to_string());
    }
  });
}

TEST_CASE("trap 4: new tensors with the base's global sizes are cut as the base") {
  run_ranks(2, [](int) {
    const auto x = place(values({5, 3}), line(2), {Shard(0)});
    const auto made = x.new_empty_strided({5, 3}, {3, 1});
    check(is_dtensor(made) && made.sizes() == x.sizes(), "new_empty_strided");
    check_close(made.zero_(), at::zeros({5, 3}, at::kDouble), "and may be filled");
    check_close(x.new_zeros({5, 3}), at::zeros({5, 3}, at::kDouble), "new_zeros");
    check_close(at::empty_like(x).fill_(2), at::full({5, 3}, 2, at::kDouble), "empty_like");
  });
}

TEST_CASE("trap 22: flattening a batch by sequence shard before the loss moves data, and says so under a strict policy") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto logits = values({2, 4, 3});
    const auto sharded = place(logits, mesh, {Shard(1)});  // its parts of the flat dimension would be strided
    check_close(sharded.view({-1, 3}), logits.view({-1, 3}), "view");
    check_close(torch::cross_entropy_loss(sharded.view({-1, 3}), place(at::arange(8) % 3, mesh, {Replicate()})),
                torch::cross_entropy_loss(logits.view({-1, 3}), at::arange(8) % 3), "loss");
    const PolicyGuard guard({Fallback::warn, ImplicitMoves::error, PlainTensors::error});
    const auto text = refusal_of<Error>([&] { sharded.view({-1, 3}); }, "view under implicit_moves: error");
    check_contains(text, "view");
    check_contains(text, "Shard(1)");
    // A sequence of one batch entry alone is no such case.
    check_close(place(logits.slice(0, 0, 1), mesh, {Shard(1)}).view({-1, 3}), logits.slice(0, 0, 1).reshape({-1, 3}),
                "one batch entry");
  });
}

TEST_CASE("trap 5: in-place writes through views reach base and gradient") {
  const std::vector<std::pair<const char*, Function>> programs = {
      {"t().mul_",
       [](at::Tensor x) {
         auto h = x * 2;
         h.t().mul_(3);
         return h;
       }},
      {"select(1).mul_",
       [](at::Tensor x) {
         auto h = x * 2;
         h.select(1, 3).mul_(3);
         return h;
       }},
      {"narrow(1).add_",
       [](at::Tensor x) {
         auto h = x * 2;
         h.narrow(1, 1, 2).add_(3);
         return h;
       }},
      {"view().mul_",
       [](at::Tensor x) {
         auto h = x * 2;
         h.view({4, 2, 4}).mul_(3);
         return h;
       }},
      {"view, transpose, unsqueeze, squeeze",
       [](at::Tensor x) {
         auto h = x * 2;
         h.transpose(0, 1).unsqueeze(0).squeeze(0).transpose(0, 1).mul_(5);
         return h;
       }},
      {"base written, view read",
       [](at::Tensor x) {
         auto h = x * 2;
         auto v = h.t();
         h.mul_(x.detach());
         return v;
       }},
      {"copy_ into a view",
       [](at::Tensor x) {
         auto h = x * 2;
         h.select(1, 0).copy_(x.select(1, 1));
         return h;
       }},
      {"two views",
       [](at::Tensor x) {
         auto h = x * 1;
         h.t().mul_(3);
         auto v = h.t().slice(0, 1, 3);
         h.mul_(2);
         return v;
       }},
  };
  run_ranks(2, [&](int) {
    for (const auto& placement : {Replicate(), Shard(0), Shard(1)})
      for (const auto& [name, program] : programs)
        for (int mode = 0; mode < 2; ++mode) {
          // InferenceMode(false) resets the flag that view replay needs, as new threads do.
          const auto text =
              fmt::format("{} {}{}", name, placement.to_string(), mode ? " in InferenceMode(false)" : "");
          std::optional<c10::InferenceMode> normal;
          if (mode) normal.emplace(false);
          auto p = values({8, 4}).set_requires_grad(true);
          const auto expected = program(p);
          expected.pow(2).sum().backward();
          auto x = leaf(values({8, 4}), line(2), {placement});
          try {
            const auto actual = program(x);
            check_close(actual, expected, text);
            actual.pow(2).sum().backward();
            check_close(x.grad(), p.grad(), text + ", gradient");
          } catch (const UnsupportedError& error) {
            // Only a view of the cut dimension may be refused.
            check(placement != Replicate(), text + ": " + error.what());
            check_contains(error.what(), "view");
          }
        }
  });
}

TEST_CASE("trap 5: a graph built on one thread is run on another") {
  run_ranks(1, [](int) {
    const auto mesh = line(1);
    auto x = leaf(values({8, 4}), mesh, {Shard(0)});
    at::Tensor loss;
    auto& world = mesh.world();
    world.release_thread();
    std::thread([&] {
      auto h = x * 2;
      h.t().mul_(3);
      loss = h.pow(2).sum();
    }).join();
    world.release_thread();
    std::thread([&] { loss.backward(); }).join();
    check_close(x.grad(), values({8, 4}) * 72, "gradient");
  });
}
