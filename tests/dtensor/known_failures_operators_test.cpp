// Public failures of other systems that concern operators along cut dimensions, views and products; by their numbers.
#include <dtensor/decision_cache.h>
#include <placements/shard_math.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

at::Tensor numbers(std::vector<double> list, at::ScalarType dtype = at::kFloat) {
  return at::tensor(list, at::kDouble).to(dtype);
}
at::Tensor indices(std::vector<std::int64_t> list) { return at::tensor(list, at::kLong); }

// Values and gradients of `function` equal those on plain tensors; inputs placed so.
using Tensors = std::vector<at::Tensor>;
void check_with_gradients(const Tensors& inputs, const std::vector<Placements>& placements,
                          const DeviceMesh& mesh, const std::function<at::Tensor(const Tensors&)>& function,
                          const std::string& text, double tolerance = 1e-6) {
  Tensors plain, distributed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool differentiable = inputs[i].is_floating_point();
    plain.push_back(inputs[i].detach().clone().set_requires_grad(differentiable));
    distributed.push_back(differentiable ? leaf(inputs[i], mesh, placements[i])
                                         : place(inputs[i], mesh, placements[i]));
  }
  const auto expected = function(plain), actual = function(distributed);
  check_close(actual, expected, text, tolerance);
  (expected * expected).sum().backward();
  (actual * actual).sum().backward();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (plain[i].grad().defined())
      check_close(distributed[i].grad(), plain[i].grad(), text + ": gradient " + std::to_string(i),
                  tolerance);
}

}  // namespace

TEST_CASE("K09: topk along the cut dimension") {
  run_ranks(4, [](int) {
    const auto x = place(numbers({4, 9, 1, 7, 8, 2, 6, 3}), line(4), {Shard(0)});
    const auto [three, where_three] = x.topk(3);
    check_close(three, numbers({9, 8, 7}), "k = 3");
    check_close(where_three, indices({1, 4, 3}), "k = 3");
    const auto [five, where_five] = x.topk(5);
    check_close(five, numbers({9, 8, 7, 6, 4}), "k = 5");
    check_close(where_five, indices({1, 4, 3, 6, 0}), "k = 5");
    const auto [least, where_least] = x.topk(2, -1, false);
    check_close(least, numbers({1, 2}), "least");
    check_close(where_least, indices({2, 5}), "least");
  });
}

TEST_CASE("K10: running sums along the cut dimension") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto ones = at::ones({8, 1024}, at::kInt);
    check_close(place(ones, mesh, {Shard(0), Shard(1)}).cumsum(1), ones.cumsum(1), "cumsum");
    const auto twos = at::full({4, 8}, 2.0);
    const auto random = values({5, 7});
    for (const auto& placements : {Placements{Shard(0), Shard(1)}, Placements{Shard(1), Shard(1)}}) {
      check_close(place(twos, mesh, placements).cumprod(1), twos.cumprod(1), "cumprod");
      check_close(place(random, mesh, placements).logcumsumexp(1), random.logcumsumexp(1), "logcumsumexp");
      check_close(place(random, mesh, placements).cumsum(0), random.cumsum(0), "cumsum(0)");
    }
  });
}

TEST_CASE("K11: a slice of a cut dimension moves no more than it needs") {
  run_ranks(4, [](int) {
    const auto full = counting({64, 64}, at::kFloat);
    const auto x = place(full, line(4), {Shard(1)});
    const CollectiveCounter counter;
    const auto y = x.slice(1, 0, 32);
    const auto bytes = counter.bytes();
    check(bytes <= 64 * 32 * 4, fmt::format("{} bytes received", bytes));
    check(!as_dtensor(y).layout().is_replicated(), "the slice stays cut: " + explain(y));
    check_close(y, full.slice(1, 0, 32), "values");
  });
}

TEST_CASE("K12: index_put on the indexed, cut dimension") {
  run_ranks(4, [](int) {
    const auto mesh = line(4);
    const auto four = indices({0, 1, 2, 3});
    for (const auto& placement : {Shard(0), Replicate()}) {
      const auto z = place(at::zeros({4, 4}), mesh, {Shard(0)});
      const auto rows = place(four, mesh, {Replicate()}), columns = place(four, mesh, {Replicate()});
      const auto put = at::index_put(z, {rows, columns}, place(numbers({1, 2, 3, 4}), mesh, {placement}));
      check_close(put, at::diag(numbers({1, 2, 3, 4})), "diagonal");
    }
    const auto z = place(at::zeros({16}), mesh, {Shard(0)});
    check_close(
        at::index_put(z, {place(at::arange(16), mesh, {Shard(0)})}, place(at::ones({16}), mesh, {Shard(0)})),
        at::ones({16}), "all");
    const auto repeated = at::index_put(place(at::zeros({4}), mesh, {Shard(0)}),
                                        {place(indices({0, 0, 1}), mesh, {Replicate()})},
                                        place(at::ones({3}), mesh, {Replicate()}), true);
    check_close(repeated, numbers({2, 1, 0, 0}), "accumulated");
  });
}

TEST_CASE("K13: flip and roll on the cut dimension") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = place(numbers({0, 1, 2, 3, 4, 5}), mesh, {Shard(0)});
    check_close(x.flip(0), numbers({5, 4, 3, 2, 1, 0}), "flip");
    check_close(x.roll(1), numbers({5, 0, 1, 2, 3, 4}), "roll by 1");
    check_close(x.roll(-2), numbers({2, 3, 4, 5, 0, 1}), "roll by -2");
    const auto matrix = values({4, 6});
    const auto y = place(matrix, mesh, {Shard(1)});
    {
      const CollectiveCounter counter;
      const auto flipped = y.flip(0);
      check(counter.total() == 0, "flipping a whole dimension is free: " + counter.to_string());
      check_close(flipped, matrix.flip(0), "flip(0)");
    }
    check_close(y.roll(5), matrix.roll(5), "roll of all");
    check_close(y.roll({1, 2}, {0, 1}), matrix.roll({1, 2}, {0, 1}), "roll of both");
  });
}

TEST_CASE("K14: split, chunk and unbind of the cut dimension") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = counting({8, 1});
    const auto x = place(full, mesh, {Shard(0)});
    const auto check_all = [](const Tensors& actual, const Tensors& expected, const std::string& text) {
      check(actual.size() == expected.size(), text + ": count");
      for (std::size_t i = 0; i < actual.size(); ++i) check_close(actual[i], expected[i], text);
    };
    check_all(x.split_with_sizes({3, 5}), full.split_with_sizes({3, 5}), "split");
    check_all(x.chunk(3), full.chunk(3), "chunk");
    check_all(x.unbind(0), full.unbind(0), "unbind");
    const auto matrix = values({4, 6});
    const auto y = place(matrix, mesh, {Shard(1)});
    const CollectiveCounter counter;
    const auto parts = y.split(1, 0);
    check(counter.total() == 0, "splitting a whole dimension is free");
    check_all(parts, matrix.split(1, 0), "split(0)");
  });
}

TEST_CASE("K15: cat of many tensors, and of unlike placements") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    Tensors plain, distributed;
    for (int i = 0; i < 60; ++i) {
      plain.push_back(at::full({2, 3}, i, at::kFloat));
      distributed.push_back(place(plain.back(), mesh, {Shard(1)}));
    }
    check_close(at::cat(distributed), at::cat(plain), "sixty");
    const auto a = values({4, 3}), b = values({2, 3}, 1);
    const auto local = at::full({1, 3}, rank + 1.0, at::kDouble);
    const auto joined = at::cat({at::Tensor(place(a, mesh, {Shard(0)})), place(b, mesh, {Replicate()}),
                                 from_local(local, mesh, {Partial()})});
    check_close(joined, at::cat({a, b, at::full({1, 3}, 3.0, at::kDouble)}), "unlike placements");
  });
}

TEST_CASE("K19: local strides of an uneven shard") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto full = counting({3, 9});
    const auto w = place(full, mesh, {Shard(1)});
    const auto local = w.to_local();
    const std::int64_t columns = rank == 0 ? 5 : 4;
    check(local.sizes() == c10::IntArrayRef{3, columns} && local.stride(0) == columns,
          "dense by its own sizes");
    check(local.view({-1}).numel() == 3 * columns, "flattens by view");
    check_close(from_local(local, mesh, {Shard(1)}), full, "rebuilt");
  });
  run_ranks(4, [](int) {
    const auto full = counting({7, 4});
    const auto w = place(full, line(4), {Shard(0)});
    check(w.to_local().is_contiguous(), "dense");
    FromLocalOptions options;
    options.global_sizes = std::vector<std::int64_t>{7, 4};
    check_close(from_local(w.to_local(), line(4), {Shard(0)}, options), full, "rebuilt");
  });
}

TEST_CASE("K22: a matrix product with an inner dimension of zero") {
  run_ranks(4, [](int) {
    const auto mesh = line(4);
    const auto bias = place(numbers({1, 2, 3, 4}), mesh, {Replicate()});
    const auto b = place(at::zeros({0, 4}), mesh, {Replicate()});
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      check_close(at::addmm(bias, place(at::zeros({12, 0}), mesh, {placement}), b),
                  numbers({1, 2, 3, 4}).expand({12, 4}), "addmm");
      check_close(
          at::mm(place(at::zeros({4, 0}), mesh, {placement}), place(at::zeros({0, 3}), mesh, {Replicate()})),
          at::zeros({4, 3}), "mm");
    }
  });
}

TEST_CASE("K26: reduce-scatter of uneven pieces, of every kind of pending value") {
  run_ranks(3, [](int rank) {
    const auto mesh = line(3);
    for (const auto& [op, expected] : std::vector<std::pair<ReduceOp, double>>{
             {ReduceOp::sum, 6}, {ReduceOp::max, 3}, {ReduceOp::avg, 2}}) {
      const auto p = from_local(at::full({7, 2}, rank + 1.0), mesh, {Partial(op)});
      for (const auto& to : {Shard(0), Shard(1)})
        check_close(p.redistribute({to}), at::full({7, 2}, expected), "redistributed");
    }
  });
}

TEST_CASE("K27: the order in which two mesh dimensions cut one tensor dimension") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto full = numbers({0, 1, 2, 3}).view({4, 1});
    // First over tp, then each piece over dp.
    const auto by_tp = place(full, mesh, {Replicate(), Shard(0)});
    const Layout* nested = Layout::of(by_tp.layout().mesh_pointer(), {Shard(0), Shard(0)}, {1, 0});
    const auto offset = 2 * mesh.coordinate()[1] + mesh.coordinate()[0];
    check(shard_math::local_intervals(*nested, 0, 4, mesh.coordinate()).front().offset == offset,
          "tp cuts first");
    // As placements alone, left to right: dp cuts first.
    auto weight = leaf(full, mesh, {Shard(0), Shard(0)});
    check_close(weight, full, "read");
    torch::optim::SGD optimizer({weight}, 1.0);
    weight.sum().backward();
    optimizer.step();
    check_close(weight, full - 1, "after a step");
  });
}

TEST_CASE("K28: contraction over dimensions cut alike and unlike") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto a = counting({4, 4});
    for (const auto& b :
         {Placements{Shard(0), Shard(0)}, Placements{Shard(1), Shard(0)}, Placements{Shard(0), Replicate()}})
      check_close(at::mm(place(a, mesh, {Shard(1), Shard(1)}), place(a, mesh, b)), at::mm(a, a),
                  to_string(b));
  });
}

TEST_CASE("K29: exchanging cut dimensions without a full gather") {
  run_ranks(4, [](int) {
    const auto full = counting({32, 32}, at::kFloat);
    const auto moved = [&](const DeviceMesh& mesh, const Placements& from, const Placements& to) {
      const auto x = place(full, mesh, from);
      const CollectiveCounter counter;
      const auto y = x.redistribute(to);
      const auto bytes = counter.bytes(), all_to_alls = counter.count(Collective::all_to_all),
                 calls = counter.total();
      check_close(y, full, "values");
      return std::tuple(bytes, all_to_alls, calls);
    };
    constexpr std::int64_t local = 32 * 32 * 4 / 4;
    const auto [bytes_a, exchanges_a, calls_a] =
        moved(grid(2, 2), {Shard(0), Shard(0)}, {Shard(0), Shard(1)});
    check(exchanges_a == 1 && calls_a == 1 && bytes_a <= local, "(a) one all-to-all");
    const auto [bytes_b, exchanges_b, calls_b] =
        moved(grid(2, 2), {Shard(0), Shard(1)}, {Shard(1), Shard(0)});
    check(bytes_b < 3 * local, fmt::format("(b) no rank holds the full tensor: {} bytes", bytes_b));
    const auto [bytes_c, exchanges_c, calls_c] = moved(line(4), {Shard(0)}, {Shard(1)});
    check(exchanges_c == 1 && calls_c == 1 && bytes_c <= local, "(c) one all-to-all");
  });
}

TEST_CASE("K33: gradients of chunks, added up by hand") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto input = values({6, 3}), first = values({4, 3}, 1), second = values({8, 4}, 2);
    const auto targets = at::arange(6) % 8;
    const auto run = [&](auto placed, auto parameter) {
      const auto w1 = parameter(first, Replicate()), w2 = parameter(second, Shard(0));
      const auto hidden = at::linear(placed(input), w1);
      const auto cut = hidden.detach().requires_grad_();
      at::Tensor total;
      for (int chunk = 0; chunk < 3; ++chunk) {
        const auto logits = at::linear(cut.slice(0, 2 * chunk, 2 * chunk + 2), w2);
        const auto loss =
            at::cross_entropy_loss(logits, placed(targets.slice(0, 2 * chunk, 2 * chunk + 2)), {}, 2);
        const auto gradient = torch::autograd::grad({loss}, {cut})[0];
        total = total.defined() ? total + gradient : gradient;
      }
      hidden.backward(total);
      return w1.grad();
    };
    const auto expected =
        run([](const at::Tensor& x) { return x; },
            [](const at::Tensor& x, Placement) { return x.detach().clone().requires_grad_(); });
    const auto actual =
        run([&](const at::Tensor& x) { return at::Tensor(place(x.contiguous(), mesh, {Replicate()})); },
            [&](const at::Tensor& x, Placement placement) { return at::Tensor(leaf(x, mesh, {placement})); });
    check_close(actual, expected, "weight gradient");
  });
}

TEST_CASE("K35: softmax across shards") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = numbers({1000, 0, 1000, 0}, at::kDouble), c = numbers({1, 2, 3, 4}, at::kDouble);
    const auto s = place(x, mesh, {Shard(0)});
    const CollectiveCounter counter;
    const auto softmax = s.softmax(0);
    check_placed(softmax, {Shard(0)}, "softmax stays where it is");
    check(counter.bytes() <= 2 * 8, fmt::format("{} bytes", counter.bytes()));
    check_close(softmax, numbers({0.5, 0, 0.5, 0}, at::kDouble), "softmax");
    check_close(s.log_softmax(0), x.log_softmax(0), "log_softmax");
    check_close(s.logsumexp(0), x.logsumexp(0), "logsumexp");
    check_with_gradients(
        {x, c}, {{Shard(0)}, {Replicate()}}, mesh,
        [](const Tensors& t) { return (t[1] * t[0].softmax(0)).sum(); }, "weighted softmax");
    check_with_gradients(
        {x, c}, {{Shard(0)}, {Replicate()}}, mesh,
        [](const Tensors& t) { return (t[1] * t[0].log_softmax(0)).sum(); }, "weighted log_softmax");
  });
}

TEST_CASE("K36: norms of every placement") {
  run_ranks(2, [](int rank) {
    const auto mesh = line(2);
    const auto x = values({2, 4, 8}), weight = values({8}, 1), bias = values({8}, 2);
    const auto norms = std::vector<std::function<at::Tensor(const Tensors&)>>{
        [](const Tensors& t) { return at::layer_norm(t[0], {8}, t[1], t[2]); },
        [](const Tensors& t) { return at::rms_norm(t[0], {8}, t[1]) + t[2] * 0; }};
    for (const auto& norm : norms) {
      for (const auto& placement : {Shard(0), Shard(1), Shard(2), Replicate()})
        check_with_gradients({x, weight, bias}, {{placement}, {Replicate()}, {Replicate()}}, mesh, norm,
                             placement.to_string());
      check_with_gradients({x, weight, bias}, {{Shard(2)}, {Shard(0)}, {Shard(0)}}, mesh, norm,
                           "weight cut too");
      const auto pending = from_local(rank == 0 ? x * 0.25 : x * 0.75, mesh, {Partial()});
      const auto whole_weight = place(weight, mesh, {Replicate()}),
                 whole_bias = place(bias, mesh, {Replicate()});
      check_close(norm({pending, whole_weight, whole_bias}), norm({x, weight, bias}), "of a pending sum");
      for (const auto& placement : {Shard(0), Shard(1)}) {
        const auto sharded = place(x, mesh, {placement});
        const CollectiveCounter counter;
        norm({sharded, whole_weight, whole_bias});
        check(counter.total() == 0, "no communication for " + placement.to_string());
      }
    }
  });
}

TEST_CASE("K37: attention options are part of the decision") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto q = values({2, 4, 8, 16}), k = values({2, 4, 8, 16}, 1), v = values({2, 4, 8, 16}, 2);
    const auto mask = at::ones({8, 8}, at::kBool).tril();
    const std::vector<Placements> heads(3, {Shard(1)});
    const auto attend = [&](bool causal, const std::optional<at::Tensor>& plain_mask) {
      return [=](const Tensors& t) {
        std::optional<at::Tensor> given;
        if (plain_mask)
          given = is_dtensor(t[0]) ? at::Tensor(place(*plain_mask, mesh, {Replicate()})) : *plain_mask;
        return at::scaled_dot_product_attention(t[0], t[1], t[2], given, 0, causal);
      };
    };
    check_with_gradients({q, k, v}, heads, mesh, attend(false, {}), "plain");
    check_with_gradients({q, k, v}, heads, mesh, attend(true, {}), "causal");
    check_with_gradients({q, k, v}, heads, mesh, attend(false, mask), "masked");
    check_with_gradients(
        {q, k.slice(1, 0, 2).contiguous(), v.slice(1, 0, 2).contiguous()}, heads, mesh,
        [](const Tensors& t) {
          return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, false, std::nullopt, true);
        },
        "two KV heads");
    check_with_gradients({q, k, v}, heads, mesh, attend(false, {}), "plain again");
  });
}

TEST_CASE("K45: two vocabulary-cut tables at once") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto ids = indices({0, 9, 4, 5, 9}), others = indices({10, 0, 3, 6, 2});
    const auto tables = [&](std::int64_t rows, std::int64_t width) {
      check_with_gradients(
          {values({10, 3}), values({rows, width}, 1), ids, others},
          {{Shard(0)}, {Shard(0)}, {Replicate()}, {Replicate()}}, mesh,
          [](const Tensors& t) {
            const auto y = at::embedding(t[0], t[2]), z = at::embedding(t[1], t[3]);
            const auto again = at::embedding(t[0], t[2]);
            return y.sum(1) * z.sum(1) + again.sum(1);
          },
          "tables");
    };
    tables(11, 5);
    tables(11, 3);
  });
}

TEST_CASE("K48: label smoothing over a cut vocabulary") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto logits = numbers({0, 1, 2, 3}, at::kDouble).view({1, 4});
    const auto loss = at::cross_entropy_loss(place(logits, mesh, {Shard(1)}),
                                             place(indices({3}), mesh, {Replicate()}), {}, 1, -100, 0.1);
    check(std::abs(loss.item<double>() - 0.590190) < 1e-6, "smoothed");
    const auto weights = place(numbers({1, 2, 0.5, 1}, at::kDouble), mesh, {Replicate()});
    const auto three = values({3, 4});
    for (const auto& placement : {Shard(0), Shard(1)})
      check_with_gradients(
          {three, indices({3, -100, 1})}, {{placement}, {Replicate()}}, mesh,
          [&](const Tensors& t) {
            const auto w = is_dtensor(t[0]) ? at::Tensor(weights) : whole(weights);
            return at::cross_entropy_loss(t[0], t[1], w, 1, -100, 0.1);
          },
          "weights, one ignored");
  });
}

TEST_CASE("K50: a rank whose targets are all ignored") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto log_probabilities = numbers({-1, 0, -2, 0, 0, -3, -4, 0}, at::kDouble).view({4, 2});
    const auto targets = indices({-100, -100, 1, 0}), none = indices({-100, -100, -100, -100});
    for (const auto& placement : {Shard(0), Shard(1)}) {
      const auto x = place(log_probabilities, mesh, {placement});
      const auto loss =
          at::nll_loss(x, place(targets, mesh, {placement.dim() == 0 ? Shard(0) : Replicate()}));
      check_close(loss, at::scalar_tensor(3.5, at::kDouble), "mean");
      check_close(at::nll_loss(x, place(none, mesh, {Replicate()})), at::nll_loss(log_probabilities, none),
                  "all ignored");
      check_with_gradients(
          {log_probabilities, targets}, {{placement}, {Replicate()}}, mesh,
          [](const Tensors& t) { return at::cross_entropy_loss(t[0], t[1], {}, 1, -100, 0.1); }, "smoothed");
    }
  });
}

TEST_CASE("K51: log_softmax used by something other than cross entropy") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto c = numbers({1, 2, 3, 4}, at::kDouble).view({1, 4});
    auto x = leaf(at::zeros({1, 4}, at::kDouble), mesh, {Shard(1)});
    (place(c, mesh, {Replicate()}) * x.log_softmax(1)).sum().backward();
    check_close(x.grad(), numbers({-1.5, -0.5, 0.5, 1.5}, at::kDouble).view({1, 4}), "gradient");
    check_with_gradients(
        {values({2, 4}), indices({3, 1})}, {{Shard(1)}, {Replicate()}}, mesh,
        [](const Tensors& t) {
          return t[0].log_softmax(1).select(1, 2).sum() + at::cross_entropy_loss(t[0], t[1]);
        },
        "both uses");
  });
}

TEST_CASE("K72: stacking many distributed tensors") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    for (const int count : {10, 100, 1000}) {
      const Tensors scalars(static_cast<std::size_t>(count), place(at::ones({}), mesh, {Replicate()}));
      const Tensors shards(static_cast<std::size_t>(count), place(at::ones({8}), mesh, {Shard(0)}));
      at::stack(scalars), at::stack(shards);
      const auto before = DecisionCache::instance().statistics();
      const CollectiveCounter counter;
      const auto again = at::stack(shards);
      at::stack(scalars);
      check(counter.total() == 0, "no communication");
      check_placed(again, {Shard(1)}, "still cut");
      check(DecisionCache::instance().statistics().hits >= before.hits + 2,
            "the second call finds its decision");
    }
  });
}

TEST_CASE("K73: a batched product that needs no communication") {
  run_ranks(4, [](int) {
    const auto mesh = grid(2, 2);
    const auto v = counting({4, 4, 3});
    auto s = leaf(at::ones({3, 1}, at::kDouble), mesh, {Replicate(), Replicate()});
    const auto placed = place(v, mesh, {Shard(0), Shard(1)});
    CollectiveCounter counter;
    const auto o = at::matmul(placed, s);
    check(counter.total() == 0, "forward is free: " + counter.to_string());
    check_placed(o, {Shard(0), Shard(1)}, "result");
    check_close(o, at::matmul(v, at::ones({3, 1}, at::kDouble)), "values");
    o.sum().backward();
    check_close(s.grad(), v.sum({0, 1}).view({3, 1}), "gradient of s");
  });
}
