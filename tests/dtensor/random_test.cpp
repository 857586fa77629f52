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
  agreement.check("complex", randn({7, 5}, mesh, placements, at::kComplexDouble));
  agreement.check("randint", randint(-3, 9, {7, 5}, mesh, placements));
  const auto ones_like = ones({8, 6}, mesh, placements);
  agreement.check("dropout", torch::dropout(ones_like, 0.5, true));
  agreement.check("dropout again", torch::dropout(ones_like, 0.5, true));
  agreement.check("bernoulli", at::bernoulli(ones_like * 0.3));
  agreement.check("rand_like", at::rand_like(ones_like));
  agreement.check("randn_like", at::randn_like(ones_like));
  agreement.check("randint_like", at::randint_like(ones_like, 2, 7));
  agreement.check("normal", at::normal(ones_like, ones_like * 2));
  agreement.check("multinomial", at::multinomial(ones_like, 4));
  agreement.check("multinomial, replaced", at::multinomial(ones_like, 9, true));
  agreement.check("dropout of features", torch::feature_dropout(ones_like, 0.5, true));
  agreement.check("alpha dropout of features", torch::feature_alpha_dropout(ones_like, 0.5, true));
  agreement.check("alpha dropout", torch::alpha_dropout(ones_like, 0.5, true));
  Placements of_vector = placements;
  for (auto& placement : of_vector)
    if (placement == Shard(1)) placement = Shard(0);
  agreement.check("randperm", randperm(9, mesh, of_vector));
  if (!as_dtensor(ones_like).layout().has_partial()) {
    auto x = zeros({5, 3}, mesh, placements, at::kDouble);
    x.normal_(1, 2);
    agreement.check("normal_", x);
    x.uniform_(-3, 3);
    agreement.check("uniform_", x);
    x.bernoulli_(0.25);
    agreement.check("bernoulli_", x);
    agreement.check("bernoulli_ by tensor", x.bernoulli_(zeros({3}, mesh, Placements(placements.size(), Replicate())) + 0.5));
    agreement.check("exponential_", x.exponential_(2));
    agreement.check("cauchy_", x.cauchy_(1, 2));
    agreement.check("log_normal_", x.log_normal_(1, 0.5));
    agreement.check("geometric_", x.geometric_(0.3));
    agreement.check("random_", x.random_(5));
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
  CHECK(at::equal(std::get<0>(agreement.get("randperm").sort()), at::arange(9)));
}

TEST_CASE("distributions: moments of many draws, and the ends of their ranges") {
  run_ranks(2, [](int) {
    manual_seed(23);
    const auto mesh = line(2);
    constexpr std::int64_t n = 40'000;
    auto x = zeros({n}, mesh, {Shard(0)}, at::kDouble);
    // Mean and deviation within 5 standard errors, roughly.
    const auto moments = [&](const char* what, double mean, double deviation, double tolerance) {
      check(std::abs(x.mean().item<double>() - mean) < tolerance, fmt::format("mean of {}: {}", what, x.mean().item<double>()));
      check(std::abs(x.std().item<double>() - deviation) < 2 * tolerance, fmt::format("deviation of {}", what));
    };
    x.exponential_(2);
    moments("exponential_", 0.5, 0.5, 0.0125);
    check(x.min().item<double>() > 0, "exponential_ is positive");
    x.log_normal_(0, 0.25);
    moments("log_normal_", std::exp(0.03125), std::sqrt((std::exp(0.0625) - 1) * std::exp(0.0625)), 0.0075);
    x.geometric_(0.25);
    moments("geometric_", 4, std::sqrt(12.0), 0.09);
    check(x.min().item<double>() == 1, "geometric_ counts from 1");
    x.cauchy_(3, 0.5);
    check(std::abs(x.median().item<double>() - 3) < 0.02, "median of cauchy_");
    const auto above = x.gt(3.5).to(at::kDouble).mean().item<double>();
    check(std::abs(above - 0.25) < 0.011, "upper quartile of cauchy_");
    x.random_(-2, 3);
    moments("random_", 0, std::sqrt(2.0), 0.036);
    check(x.min().item<double>() == -2 && x.max().item<double>() == 2, "ends of random_");
    const auto complex = randn({n}, mesh, {Shard(0)}, at::kComplexDouble);
    check(std::abs(at::abs(complex).square().mean().item<double>() - 1) < 0.025, "a complex number's variance is 1");
    auto bytes = zeros({n}, mesh, {Shard(0)}, at::kByte);
    bytes.random_();
    check(bytes.max().item<int>() == 255 && bytes.min().item<int>() == 0, "all values of a type");
    // Shares of choices follow the weights; a weight of zero is never chosen.
    const auto weights = place(at::tensor({1.0, 0.0, 2.0, 5.0}).expand({n / 8, 4}).contiguous(), mesh, {Shard(0)});
    for (const bool replacement : {false, true}) {
      const auto chosen = at::multinomial(weights, 1, replacement);
      for (const auto& [which, share] : std::vector<std::pair<std::int64_t, double>>{{0, 0.125}, {1, 0}, {2, 0.25}, {3, 0.625}})
        check(std::abs(chosen.eq(which).to(at::kDouble).mean().item<double>() - share) < (share == 0 ? 1e-12 : 0.035),
              fmt::format("share of {}", which));
    }
  });
}

TEST_CASE("distributions: arguments that the stock operator refuses are refused on every rank") {
  run_ranks(2, [](int) {
    auto x = zeros({5, 3}, line(2), {Shard(0)}, at::kDouble);
    refusal_of<c10::Error>([&] { x.exponential_(-1); }, "exponential_");
    refusal_of<c10::Error>([&] { x.normal_(0, -1); }, "normal_");
    refusal_of<c10::Error>([&] { x.uniform_(2, 1); }, "uniform_");
    refusal_of<c10::Error>([&] { x.random_(3, 3); }, "random_");
    refusal_of<c10::Error>([&] { randn({4}, line(2), {Shard(0)}, at::kLong); }, "normal integers");
    auto weights = at::ones({4, 3}, at::kDouble);
    weights[3][0] = -1;  // a row of the last rank
    check_contains(error_of<c10::Error>([&] { at::multinomial(place(weights, line(2), {Shard(0)}), 1); }, "weights"),
                   "element < 0");
  });
}

TEST_CASE("Dropout2d: whole features, alike on replicas and apart on shards") {
  run_ranks(4, [](int) {
    torch::nn::Dropout2d module(0.5);
    manual_seed(9);
    auto x = leaf(at::ones({6, 8, 2, 2}, at::kDouble), grid(2, 2), {Shard(0), Shard(1)});
    const auto y = module(x);
    y.sum().backward();
    const auto full = whole(y);
    check_close(x.grad(), full, "the gradient uses the mask");
    const auto features = full.flatten(2);
    check(at::equal(features, features.select(2, 0).unsqueeze(2).expand_as(features)), "a feature is dropped as a whole");
    check(!at::equal(full[0], full[4]), "parts differ");
  });
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
    check_contains(refusal_of<UnsupportedError>([&] { at::poisson(x); }, "poisson"), "random");
  });
}
