// Writing to pending values (trap 24), out=, and lists of tensors.
#include <dtensor/meta.h>
#include <support/check.h>
#include <torch/torch.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {
// Pending, with parts that differ: coordinate 0 holds full - 1 and the other ranks share the rest.
DTensor pending(const at::Tensor& full, const DeviceMesh& mesh) {
  const auto rest = at::full_like(full, 1.0 / static_cast<double>(mesh.size() - 1));
  return from_local(mesh.coordinate()[0] == 0 ? full - 1 : rest, mesh, {Partial()});
}
}  // namespace

TEST_CASE("trap 24: add and subtract in place on a pending value count the other operand once") {
  run_ranks(3, [](int) {
    const auto mesh = line(3);
    const auto full = values({4, 2}), other = values({4, 2}, 1), bias = values({2}, 2);
    for (const auto& placement : {Replicate(), Partial(), Shard(0)}) {
      auto x = pending(full, mesh);
      x.add_(place(other, mesh, {placement}));
      check_placed(x, {Partial()}, "add_");
      check_close(x, full + other, "add_ " + placement.to_string());
      x.sub_(place(other, mesh, {placement}), 2);
      check_close(x, full - other, "sub_ with alpha " + placement.to_string());
    }
    auto x = pending(full, mesh);
    const CollectiveCounter counter;
    x.add_(place(bias, mesh, {Replicate()}));
    check(counter.total() == 0, "adding a bias costs nothing");
    check_close(x, full + bias, "a broadcast bias");
  });
}

TEST_CASE("trap 24: times and divided by a whole value pass, everything else is refused") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto full = values({4, 2}), other = values({4, 2}, 1) + 3;
    auto x = pending(full, mesh);
    x.mul_(place(other, mesh, {Replicate()}));
    check_close(x, full * other, "mul_");
    x.div_(place(other, mesh, {Replicate()}));
    check_close(x, full, "div_");
    x.mul_(3).div_(2).neg_();
    check_close(x, full * -1.5, "by numbers");
    x.copy_(place(full, mesh, {Replicate()}));
    x.mul_(x.detach());
    check_close(x, full * full, "by another pending value, which is reduced");
    x.zero_();
    check_close(x, at::zeros({4, 2}, at::kDouble), "zero_");
    x.fill_(3);
    check_close(x, at::full({4, 2}, 3, at::kDouble), "fill_");
    x.copy_(place(full, mesh, {Replicate()}));
    check_close(x, full, "copy_");
    check_placed(x, {Partial()}, "still pending");

    const std::vector<std::pair<const char*, std::function<void(at::Tensor&)>>> refused = {
        {"relu_", [](at::Tensor& t) { t.relu_(); }},       {"clamp_", [](at::Tensor& t) { t.clamp_(0, 1); }},
        {"exp_", [](at::Tensor& t) { t.exp_(); }},         {"pow_", [](at::Tensor& t) { t.pow_(2); }},
        {"sigmoid_", [](at::Tensor& t) { t.sigmoid_(); }},
    };
    for (const auto& [name, write] : refused) {
      error_of<UnsupportedError>([&, &w = write] { w(x); }, name);
      check_close(x, full, std::string(name) + ": as it was");
    }
  });
}

TEST_CASE("trap 24: adding a number in place to a pending value adds it once or is refused") {
  run_ranks(2, [](int) {
    auto x = pending(values({4, 2}), line(2));
    try {
      x.add_(10);
      check_close(x, values({4, 2}) + 10, "add_");
      x.sub_(10);
      check_close(x, values({4, 2}), "sub_");
    } catch (const UnsupportedError&) {
      check_close(x, values({4, 2}), "as it was");
    }
  });
}

TEST_CASE("trap 24: K02, clamp_ on a pending sum through two handles") {
  run_ranks(2, [](int rank) {
    auto t = from_local(at::full({1}, 3.0 + rank), line(2), {Partial()});
    const at::Tensor v = t;
    const auto alias = t.detach();
    error_of<UnsupportedError>([&] { t.clamp_(std::nullopt, 2); }, "refused");
    for (const auto& handle : {at::Tensor(t), v, alias})
      check_close(handle, at::full({1}, 7.0f), "as it was");
  });
}

TEST_CASE("trap 24: F::linear with a pending result adds its bias once") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto x = values({3, 4}), w = values({2, 4}, 1), b = values({2}, 2);
    for (int form = 0; form < 2; ++form) {
      auto dx = leaf(x, mesh, {Shard(1)}), dw = leaf(w, mesh, {Shard(1)}), db = leaf(b, mesh, {Replicate()});
      const auto y = form ? torch::nn::functional::linear(dx, dw, db) : torch::addmm(db, dx, dw.t());
      check_close(y, x.matmul(w.t()) + b, "value");
      y.pow(2).sum().backward();
      auto px = x.clone().set_requires_grad(true), pw = w.clone().set_requires_grad(true),
           pb = b.clone().set_requires_grad(true);
      (px.matmul(pw.t()) + pb).pow(2).sum().backward();
      check_close(dx.grad(), px.grad(), "x");
      check_close(dw.grad(), pw.grad(), "w");
      check_close(db.grad(), pb.grad(), "b");
    }
  });
}

TEST_CASE("out= writes the result as the given tensor is placed") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = values({4, 6}), b = values({4, 6}, 1);
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()})
      for (const auto& wanted : {Shard(0), Shard(1), Replicate(), Partial()}) {
        const auto da = place(a, mesh, {placement}), db = place(b, mesh, {Shard(0)});
        at::Tensor out = zeros({4, 6}, mesh, {wanted}, at::kDouble);
        at::add_out(out, da, db);
        check_placed(out, {wanted}, "add_out");
        check_close(out, a + b, "add_out");
        at::mul_out(out, da, db);
        check_close(out, a * b, "mul_out");
        at::Tensor product = zeros({4, 4}, mesh, {wanted}, at::kDouble);
        at::mm_out(product, da, db.t());
        check_close(product, a.mm(b.t()), "mm_out");
      }
    const auto da = place(a, mesh, {Shard(0)});
    at::Tensor plain = at::zeros({4, 6}, at::kDouble), small = zeros({2, 6}, mesh, {Shard(0)}, at::kDouble);
    error_of<UnsupportedError>([&] { at::add_out(plain, da, da); }, "a plain out");
    error_of<c10::Error>([&] { at::add_out(small, da, da); }, "an out of another size");
    check_close(plain, at::zeros({4, 6}, at::kDouble), "as it was");
  });
}

TEST_CASE("_foreach_ operators take and write lists of DTensors") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = values({4, 6}), b = values({5}, 1);
    std::vector<at::Tensor> list = {place(a, mesh, {Shard(0)}), place(b, mesh, {Shard(0)})};
    const auto doubled = at::_foreach_mul(list, 2.0);
    check_close(doubled[0], a * 2, "first");
    check_close(doubled[1], b * 2, "second");
    at::_foreach_add_(list, doubled);
    check_close(list[0], a * 3, "in place");
    check_close(list[1], b * 3, "in place");
    check_placed(list[0], {Shard(0)}, "placed as before");
    at::_foreach_addcmul_(list, doubled, doubled, 0.5);
    check_close(list[1], b * 3 + b * b * 2, "addcmul");
  });
}

TEST_CASE("plain.copy_(dtensor), and dtensor.copy_(plain full tensor), which means distribute") {
  run_ranks(2, [](int) {
    const auto full = values({4, 6});
    for (const auto& placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
      auto x = zeros({4, 6}, line(2), {placement}, at::kDouble);
      x.copy_(full);
      check_placed(x, {placement}, "copy_");
      check_close(x, full, "copy_");
      auto plain = at::zeros({4, 6}, at::kDouble);
      check_contains(error_of<UnsupportedError>([&] { plain.copy_(x); }, "into a plain tensor"),
                     "full_tensor");
      error_of<UnsupportedError>([&] { plain.add_(x); }, "into a plain tensor");
    }
  });
}

TEST_CASE("out= of composites reaches a tensor that is cut in any way") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = values({3, 2}), b = values({2, 4}, 1);
    const auto x = values({4, 3, 5});
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      auto product = place(at::zeros({6, 8}, at::kDouble), mesh, {placement});
      at::Tensor out = product;
      at::kron_out(out, place(a, mesh, {Shard(0)}), place(b, mesh, {Shard(1)}));
      check_close(out, at::kron(a, b), "kron");
      check_placed(out, {placement}, "out= stays where it is");
      at::Tensor transformed = place(at::zeros({4, 3, 3}, at::kComplexDouble), mesh, {placement});
      at::fft_ihfft2_out(transformed, place(x, mesh, {Shard(0)}));
      check_close(transformed, at::fft_ihfft2(x), "ihfft2");
    }
  });
}
