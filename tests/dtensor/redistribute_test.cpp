// redistribute: any placement to any other, values, local sizes and gradients; DESIGN section 3.
#include <placements/shard_math.h>
#include <support/check.h>
#include <torch/csrc/autograd/autograd.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

using SizesList = std::vector<std::vector<std::int64_t>>;

bool fits(const Placements& placements, std::size_t ndim) {
  int interleaved = 0, sharded = 0;
  for (const auto& placement : placements) {
    if (placement.is_sharded() && placement.dim() >= static_cast<std::int64_t>(ndim)) return false;
    interleaved += placement.is_interleaved();
    sharded += placement.is_sharded();
  }
  return interleaved == 0 || sharded == 1;
}

// Everything that must hold of one move of one tensor, and of the gradient that comes back.
void check_move(const DeviceMesh& mesh, const std::vector<std::int64_t>& sizes, const Placements& from,
                const Placements& to) {
  const auto text = fmt::format("[{}] {} -> {}", fmt::join(sizes, ", "), to_string(from), to_string(to));
  const auto full = values(sizes), weights = values(sizes, 5);
  auto x = leaf(full, mesh, from);
  const auto moved = x.redistribute(to);
  check_placed(moved, to, text);
  check_close(moved, full, text);
  check(moved.strides() == full.strides(), text + ": strides");
  const auto local = shard_math::local_sizes(moved.layout(), sizes, mesh.coordinate());
  check(as_dtensor(moved.detach()).to_local().sizes() == c10::IntArrayRef(local), text + ": local sizes");
  if (from == to) check(moved.is_same(x), text + ": the same tensor");
  (moved * place(weights, mesh, Placements(from.size()))).sum().backward();
  check_close(x.grad(), weights, text + ", gradient");
  Placements expected = from;
  for (auto& placement : expected)
    if (placement.is_partial()) placement = Replicate();
  // With nothing to move there is no node: the gradient comes as the consumer makes it, and a leaf takes free moves only.
  if (from != to) check_placed(x.grad(), expected, text + ", gradient");
}

void check_all(const DeviceMesh& mesh, const std::vector<Placements>& all, const SizesList& shapes) {
  for (const auto& sizes : shapes)
    for (const auto& from : all)
      for (const auto& to : all)
        if (fits(from, sizes.size()) && fits(to, sizes.size())) check_move(mesh, sizes, from, to);
}

std::vector<Placements> singles(const std::vector<Placement>& kinds) {
  std::vector<Placements> all;
  for (const auto& kind : kinds) all.push_back({kind});
  return all;
}
std::vector<Placements> pairs(const std::vector<Placement>& kinds) {
  std::vector<Placements> all;
  for (const auto& a : kinds)
    for (const auto& b : kinds) all.push_back({a, b});
  return all;
}

const std::vector<Placement> every_kind = {Replicate(),
                                           Shard(0),
                                           Shard(1),
                                           Partial(),
                                           Partial(ReduceOp::avg),
                                           Partial(ReduceOp::max),
                                           Partial(ReduceOp::min),
                                           Partial(ReduceOp::product)};
const SizesList shapes = {{4, 6}, {5, 3}, {1, 4}, {0, 3}, {2, 1, 5}, {7}};

}  // namespace

TEST_CASE("redistribute: every placement to every other on 2 and 3 ranks, with gradients") {
  for (int ranks : {2, 3})
    run_ranks(ranks, [ranks](int) { check_all(line(ranks), singles(every_kind), shapes); });
}

TEST_CASE("redistribute: interleaved cuts to and from every placement") {
  for (int ranks : {2, 3})
    run_ranks(ranks, [ranks](int) {
      const auto mesh = line(ranks);
      auto kinds = every_kind;
      kinds.push_back(Interleaved(0, {4, 2, 2}));
      kinds.push_back(Interleaved(0, {5, 3}));
      check_all(mesh, singles(kinds), {{8, 3}});
      check_all(mesh, singles({Replicate(), Shard(0), Shard(1), Partial(), Interleaved(1, {1, 0, 4})}),
                {{3, 5}});
    });
}

TEST_CASE("redistribute: K20, every pair on a 2 x 2 mesh with uneven sizes, with gradients") {
  run_ranks(4, [](int) {
    check_all(grid(2, 2), pairs({Replicate(), Shard(0), Shard(1), Partial()}),
              {{5, 3}, {3, 2}, {1, 4}, {7, 7}});
  });
}

TEST_CASE("redistribute: unlike pending values on a 2 x 2 mesh") {
  run_ranks(4, [](int) {
    check_all(grid(2, 2),
              pairs({Replicate(), Shard(0), Partial(), Partial(ReduceOp::max), Partial(ReduceOp::avg)}),
              {{3, 2}});
  });
}

TEST_CASE("redistribute: Replicate to pending is exact") {
  run_ranks(3, [](int rank) {
    const auto mesh = line(3);
    const auto big = at::full({2, 2}, (std::int64_t{1} << 53) + 1, at::kLong);
    const auto tensor = place(big, mesh, {Replicate()});
    const auto local = [&](ReduceOp op) { return tensor.redistribute({Partial(op)}).to_local(); };
    check_close(local(ReduceOp::sum), rank == 0 ? big : at::zeros_like(big),
                "sum: the value on coordinate 0");
    check_close(local(ReduceOp::product), rank == 0 ? big : at::ones_like(big), "product: ones elsewhere");
    for (auto op : {ReduceOp::max, ReduceOp::min}) check_close(local(op), big, "copies");
    for (auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::max, ReduceOp::min})
      check(at::equal(tensor.redistribute({Partial(op)}).full_tensor(), big), "and back, to the last bit");
    const auto third = place(at::full({5}, 1.0 / 3, at::kFloat), mesh, {Replicate()});
    check(at::equal(third.redistribute({Partial()}).full_tensor(), at::full({5}, 1.0 / 3, at::kFloat)),
          "floats too");
  });
}

TEST_CASE("redistribute: an interleaved rank holds its piece of each part") {
  run_ranks(2, [](int rank) {
    const auto packed = counting({8, 1});  // q: 0..3, k: 4, 5, v: 6, 7
    const auto local = place(packed, line(2), {Interleaved(0, {4, 2, 2})}).to_local();
    const std::vector<double> expected =
        rank == 0 ? std::vector<double>{0, 1, 4, 6} : std::vector<double>{2, 3, 5, 7};
    check_close(local.flatten(), at::tensor(expected, at::kDouble), "q, k and v of this rank");
    error_of<PlacementError>(
        [&] {
          place(counting({7, 1}), line(2), {Interleaved(0, {4, 2, 2})});
        },
        "parts of another size");
  });
}

TEST_CASE("redistribute: other dtypes") {
  run_ranks(2, [](int) {
    for (auto dtype :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kComplexDouble}) {
      const auto full = counting({3, 2}, at::kLong).to(dtype);
      for (const auto& from : {Shard(0), Shard(1), Replicate(), Partial()})
        for (const auto& to : {Shard(0), Shard(1), Replicate()})
          check_close(place(full, line(2), {from}).redistribute({to}), full, c10::toString(dtype));
    }
    const auto flags = counting({3, 2}, at::kLong).gt(2);
    for (const auto& from : {Shard(0), Shard(1), Replicate()})
      for (const auto& to : {Shard(0), Shard(1), Replicate()})
        check_close(place(flags, line(2), {from}).redistribute({to}), flags, "bool");
  });
}

TEST_CASE("redistribute: double backward goes through the moves") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = values({4, 6});
    auto p = full.clone().set_requires_grad(true);
    const auto expected = torch::autograd::grad({p.pow(3).sum()}, {p}, {}, true, true)[0];
    expected.pow(2).sum().backward();
    for (const auto& from : {Shard(0), Shard(1), Replicate(), Partial()})
      for (const auto& to : {Shard(0), Shard(1), Replicate(), Partial()}) {
        auto x = leaf(full, mesh, {from});
        const auto first = torch::autograd::grad({x.redistribute({to}).pow(3).sum()}, {x}, {}, true, true)[0];
        check_close(first, expected, "first");
        first.pow(2).sum().backward();
        check_close(x.grad(), p.grad(), from.to_string() + " -> " + to.to_string());
      }
  });
}

TEST_CASE("redistribute: bytes and calls of the cheap paths") {
  run_ranks(4, [](int) {
    const auto mesh = line(4);
    const auto full = values({8, 8}, 0, at::kFloat);
    CollectiveCounter counter;
    place(full, mesh, {Replicate()}).redistribute({Shard(1)});
    place(full, mesh, {Replicate()}).redistribute({Partial()});
    check(counter.total() == 0, "from Replicate nothing is sent");
    place(full, mesh, {Shard(0)}).redistribute({Shard(1)});
    check(counter.total() == 1 && counter.count(Collective::all_to_all) == 1,
          "Shard to Shard: one all_to_all");
    check(counter.bytes() == 2 * 6 * 4, "three quarters of a shard");
    counter.reset();
    place(full, mesh, {Partial()}).redistribute({Shard(0)});
    check(counter.total() == 1 && counter.count(Collective::reduce_scatter) == 1,
          "pending to Shard: one reduce_scatter");
  });
}

TEST_CASE("redistribute: gathers and reduce-scatters of one tensor dimension along several mesh dimensions are one") {
  run_ranks(8, [](int) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
    for (const std::int64_t size : {8, 7, 3, 1})  // even, uneven, empty shards
      for (const std::int64_t dim : {0, 1}) {
        const auto full = dim == 0 ? values({size, 6}) : values({6, size});
        const auto cut = Shard(dim);
        const std::vector<std::tuple<Placements, Placements, std::string>> gathers = {
            {{cut, cut, Replicate()}, {Replicate(), Replicate(), Replicate()}, "pp,dp"},
            {{cut, cut, cut}, {Replicate(), Replicate(), Replicate()}, "pp,dp,tp"},
            {{cut, Replicate(), cut}, {Replicate(), Replicate(), Replicate()}, "pp,tp"},
            {{cut, cut, cut}, {cut, Replicate(), Replicate()}, "dp,tp"}};
        for (const auto& [from, to, group] : gathers) {
          const auto x = place(full, mesh, from);
          const CollectiveCounter counter;
          const auto y = x.redistribute(to);
          check(counter.total() == 1 && counter.count(Collective::all_gather, group) == 1, to_string(from) + ": " + counter.to_string());
          check_close(y, full, to_string(from) + fmt::format(" of {}", size));
          const auto pending = place(full, mesh, from);
          Placements partial = from;
          for (std::size_t i = 0; i < partial.size(); ++i)
            if (from[i] != to[i]) partial[i] = Partial();
          const auto z = pending.redistribute(to).redistribute(partial);
          const CollectiveCounter scatter;
          check_close(z.redistribute(from), full, "scattered " + to_string(from) + fmt::format(" of {}", size));
          check(scatter.count(Collective::reduce_scatter, group) == 1, to_string(partial) + ": " + scatter.to_string());
        }
      }
    // Not where the cuts are in another order.
    const auto full = values({8, 6});
    const auto x = place(full, mesh, {Replicate(), Shard(0), Shard(1)});
    const CollectiveCounter counter;
    check_close(x.redistribute({Replicate(), Replicate(), Replicate()}), full, "two tensor dimensions");
    check(counter.count(Collective::all_gather) == 2, "two tensor dimensions, one after the other: " + counter.to_string());
  });
}

TEST_CASE("redistribute: all-reduces by one operator along several mesh dimensions are one") {
  run_ranks(8, [](int) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
    const auto full = values({4, 6});
    const std::vector<std::tuple<Placements, Placements, std::string>> merged = {
        {{Replicate(), Partial(), Partial()}, {Replicate(), Replicate(), Replicate()}, "dp,tp"},
        {{Partial(), Shard(0), Partial()}, {Replicate(), Shard(0), Replicate()}, "pp,tp"},
        {{Partial(ReduceOp::max), Partial(ReduceOp::max), Partial(ReduceOp::max)}, {Replicate(), Replicate(), Replicate()}, "pp,dp,tp"},
        {{Partial(ReduceOp::avg), Partial(ReduceOp::avg), Shard(1)}, {Replicate(), Replicate(), Shard(1)}, "pp,dp"}};
    for (const auto& [from, to, group] : merged) {
      const auto x = place(full, mesh, from);
      const CollectiveCounter counter;
      const auto y = x.redistribute(to);
      check(counter.total() == 1 && counter.count(Collective::all_reduce, group) == 1, to_string(from) + ": " + counter.to_string());
      check_close(y, full, to_string(from));
    }
    const auto unlike = place(full, mesh, {Partial(), Partial(ReduceOp::max), Replicate()});
    const CollectiveCounter counter;
    check_close(unlike.redistribute({Replicate(), Replicate(), Replicate()}), full, "unlike operators");
    check(counter.count(Collective::all_reduce) == 2, "unlike operators, one after the other: " + counter.to_string());
  });
}
