// Random numbers: by global element index, the same on any mesh and placement; DESIGN section 3, K52 and K53.
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

#include <map>
#include <mutex>

using namespace dtensor;
using namespace dtensor::testing;

namespace {
// What every mesh and placement must draw: the first one seen under a name is the reference for all others.
class Agreement {
 public:
  void check(const std::string& name, const at::Tensor& tensor) {
    const auto value = whole(tensor).clone();
    const std::lock_guard lock(mutex_);
    const auto [place, fresh] = seen_.emplace(name, value);
    testing::check(fresh || at::equal(place->second, value), name + " depends on mesh or placement");
  }
  const at::Tensor& get(const std::string& name) { return seen_.at(name); }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> seen_;
};

void draw_all(Agreement& agreement, const DeviceMesh& mesh, const Placements& placements) {
  manual_seed(7);
  agreement.check("randn", randn({8, 6}, mesh, placements));
  agreement.check("rand", rand({7, 5}, mesh, placements));
  const auto ones_like = ones({8, 6}, mesh, placements);
  agreement.check("dropout", torch::dropout(ones_like, 0.5, true));
  agreement.check("dropout again", torch::dropout(ones_like, 0.5, true));
  agreement.check("bernoulli", at::bernoulli(ones_like * 0.3));
  agreement.check("rand_like", at::rand_like(ones_like));
  agreement.check("randn_like", at::randn_like(ones_like));
  if (!as_dtensor(ones_like).layout().has_partial()) {
    auto x = zeros({5, 3}, mesh, placements, at::kDouble);
    x.normal_(1, 2);
    agreement.check("normal_", x);
    x.uniform_(-3, 3);
    agreement.check("uniform_", x);
    x.bernoulli_(0.25);
    agreement.check("bernoulli_", x);
  }
}
}  // namespace

TEST_CASE("K52: random values are the same on any mesh and placement") {
  Agreement agreement;
  run_ranks(1, [&](int) { draw_all(agreement, line(1), {Replicate()}); });
  run_ranks(2, [&](int) {
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()})
      draw_all(agreement, line(2), {placement});
  });
  run_ranks(4, [&](int) {
    draw_all(agreement, line(4), {Shard(1)});
    for (const Placements& placements : {Placements{Shard(0), Shard(1)},
                                         {Shard(1), Shard(1)},
                                         {Replicate(), Shard(0)},
                                         {Partial(), Shard(0)}})
      draw_all(agreement, grid(2, 2), placements);
  });
  const auto& normal = agreement.get("normal_");
  CHECK(agreement.get("rand").min().item<double>() >= 0);
  CHECK(agreement.get("rand").max().item<double>() < 1);
  CHECK(normal.std().item<double>() > 1);
  CHECK(!at::equal(agreement.get("dropout"), agreement.get("dropout again")));
}

TEST_CASE("K53: dropout masks on a data by tensor mesh") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    at::Tensor reference;
    for (const Placements& placements :
         {Placements{Shard(0), Replicate()}, {Shard(0), Shard(1)}, {Replicate(), Replicate()}}) {
      manual_seed(3);
      const auto y = torch::dropout(ones({4, 64}, mesh, placements), 0.5, true);
      check_placed(y, placements, "placement");
      const auto full = whole(y);
      if (!reference.defined()) reference = full;
      check(at::equal(full, reference), "one mask for the global tensor, so replicas agree and parts differ");
      check(!at::equal(full[0], full[2]) && !at::equal(full[0].narrow(0, 0, 32), full[0].narrow(0, 32, 32)),
            "parts differ");
      const double kept = (full > 0).to(at::kDouble).mean().item<double>();
      check(kept > 0.4 && kept < 0.6, "half is kept");
      check(at::equal(full, (full > 0).to(at::kFloat) * 2), "kept entries are doubled");
      // Replicas: every rank that holds a part holds the same.
      const auto local = as_dtensor(y).to_local();
      const auto again =
          as_dtensor(as_dtensor(y).redistribute({Replicate(), Replicate()}).redistribute(placements))
              .to_local();
      check(at::equal(local, again), "this rank's part is the part of the whole");
    }
  });
}

TEST_CASE("dropout: the gradient uses the mask of the forward pass") {
  run_ranks(2, [](int) {
    manual_seed(5);
    auto x = leaf(at::ones({8, 4}, at::kDouble), line(2), {Shard(0)});
    const auto y = torch::dropout(x, 0.25, true);
    y.sum().backward();
    check_close(x.grad(), whole(y), "mask");
    check(torch::dropout(x, 0.5, false).is_same(x), "evaluation: the tensor itself");
    torch::nn::Dropout module(0.5);
    module->eval();
    check_close(module(x), whole(x), "nn::Dropout in evaluation");
  });
}

TEST_CASE("RandomState: get, set, and FixedRandomScope repeats the same numbers") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    manual_seed(11);
    const auto start = RandomState::get(mesh);
    check(start.seed() == 11, "seed");
    const auto first = whole(randn({6}, mesh, {Shard(0)})), second = whole(randn({6}, mesh, {Shard(0)}));
    check(!at::equal(first, second), "the state moves on");
    const auto later = RandomState::get(mesh);
    check(!(later == start), "the state moves on");
    {
      const FixedRandomScope scope(mesh, start);
      check(at::equal(whole(randn({6}, mesh, {Replicate()})), first), "recomputed");
    }
    check(RandomState::get(mesh) == later, "restored");
    start.set(mesh);
    check(at::equal(whole(randn({6}, mesh, {Shard(0)})), first), "set");
    manual_seed(12);
    check(!at::equal(whole(randn({6}, mesh, {Shard(0)})), first), "another seed");
    manual_seed(11);
    check(at::equal(whole(randn({6}, init_device_mesh(at::kCPU, {2}, {"tp"}), {Shard(0)})), first),
          "seeded again");
  });
}

TEST_CASE("a random operator without a distributed form is refused, not drawn apart") {
  run_ranks(2, [](int) {
    const auto x = place(at::ones({4, 6}, at::kDouble), line(2), {Shard(0)});
    check_contains(refusal_of<UnsupportedError>([&] { at::multinomial(x, 2); }, "multinomial"), "random");
    refusal_of<UnsupportedError>([&] { at::poisson(x); }, "poisson");
  });
}
