// Composite operators that read the values of an argument, and formulas that build tensors of their own.
#include <support/check.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {
const std::vector<Placement>& matrix_placements() {
  static const std::vector<Placement> all = {Shard(0), Shard(1), Replicate()};
  return all;
}
// The gradient of sum(f(x) * weights) equals the plain one.
void check_gradient(const at::Tensor& x, const DeviceMesh& mesh, const Placement& placement,
                    const std::function<at::Tensor(at::Tensor)>& function, const std::string& text) {
  auto plain = x.clone().set_requires_grad(true);
  auto placed = leaf(x, mesh, {placement});
  const auto expected = function(plain), actual = function(placed);
  check_close(actual, expected, text);
  (expected * expected).sum().backward();
  (actual * actual).sum().backward();
  check_close(placed.grad(), plain.grad(), text + ": gradient");
}
}  // namespace

TEST_CASE("tensor_split reads its indices from a tensor of any placement") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = values({5, 4}), indices = at::tensor({1, 3}, at::kLong);
    for (const auto& placement : matrix_placements())
      for (const auto& of_indices : {Shard(0), Replicate()}) {
        const auto parts =
            at::tensor_split(place(x, mesh, {placement}), place(indices, mesh, {of_indices}), 0);
        const auto expected = at::tensor_split(x, indices, 0);
        check(parts.size() == 3, "count");
        for (std::size_t i = 0; i < parts.size(); ++i) check_close(parts[i], expected[i], "part");
      }
    const auto halves = at::tensor_split(place(x, mesh, {Shard(0)}),
                                         place(at::scalar_tensor(2, at::kLong), mesh, {Replicate()}), 1);
    check_close(halves[1], at::tensor_split(x, 2, 1)[1], "sections");
  });
}

TEST_CASE("ctc_loss reads its lengths from tensors") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto scores = values({6, 3, 5}).log_softmax(2),
               targets = at::tensor({1, 2, 3, 1, 4, 2}, at::kLong).view({3, 2});
    const auto input_lengths = at::tensor({6, 5, 6}, at::kLong),
               target_lengths = at::tensor({2, 1, 2}, at::kLong);
    const auto expected = at::ctc_loss(scores, targets, input_lengths, target_lengths);
    const auto on_mesh = [&](const at::Tensor& x, Placement placement) {
      return place(x, mesh, {placement});
    };
    for (const auto& placement : {Shard(0), Shard(1), Replicate()})
      check_close(at::ctc_loss(on_mesh(scores, placement), on_mesh(targets, Replicate()),
                               on_mesh(input_lengths, Shard(0)), on_mesh(target_lengths, Replicate())),
                  expected, placement.to_string());
  });
}

TEST_CASE("matrix_rank, and pooling and products that work in place inside") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto matrix = values({4, 5}), images = values({3, 2, 7});
    for (const auto& placement : matrix_placements()) {
      check_close(at::linalg_matrix_rank(place(matrix, mesh, {placement}), 1e-3),
                  at::linalg_matrix_rank(matrix, 1e-3), "matrix_rank");
      check_close(at::max_pool1d(place(images, mesh, {placement}), {2}), at::max_pool1d(images, {2}),
                  "max_pool1d");
    }
  });
}

TEST_CASE("formulas that build tensors of their own give right gradients") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    const auto square = values({5, 5}) * 0.3, tau = values({4}, 1);
    for (const auto& placement : matrix_placements()) {
      check_gradient(
          square, mesh, placement, [](at::Tensor x) { return at::linalg_matrix_exp(x); }, "matrix_exp");
      check_gradient(
          square, mesh, placement, [](at::Tensor x) { return x.trace(); }, "trace");
      check_gradient(
          values({5, 4}), mesh, placement,
          [&](at::Tensor x) {
            const at::Tensor t = is_dtensor(x) ? at::Tensor(place(tau, mesh, {Shard(0)})) : tau;
            return at::linalg_householder_product(x, t);
          },
          "householder_product");
      check_gradient(
          square, mesh, placement,
          [&](at::Tensor x) {
            const at::Tensor t = is_dtensor(x) ? at::Tensor(place(tau, mesh, {Replicate()})) : tau;
            return at::ormqr(x.slice(1, 0, 4), t, x);
          },
          "ormqr");
    }
  });
}

TEST_CASE("an index without elements selects nothing, and its gradient is zero") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = values({4, 3}), nothing = at::empty({0}, at::kLong);
    for (const auto& placement : matrix_placements()) {
      auto tokens = leaf(x, mesh, {placement});
      const auto selected = tokens.index_select(0, place(nothing, mesh, {Replicate()}));
      check(selected.size(0) == 0 && selected.size(1) == 3, "sizes");
      (selected.sum() + tokens.sum()).backward();
      check_close(tokens.grad(), at::ones({4, 3}, at::kDouble), placement.to_string());
    }
  });
}
