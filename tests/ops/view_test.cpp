#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

// Writing through the view of a copy reaches the copy. Where the view would have to move a cut dimension that is refused,
// also in backward, where the gradient is written so: such views are tried without.
Sample written(const char* name, bool may_move, Numbers sizes,
               std::function<at::Tensor(const at::Tensor&)> view) {
  auto result =
      program(std::string("write through ") + name, {values(std::move(sizes))}, [view](const Tensors& x) {
        auto base = x[0].clone();
        view(base).mul_(3);
        return Tensors{base};
      });
  if (!may_move) return result;
  return result.without_gradient().refuses([](const Combination& combination) {
    for (const auto& placement : *combination[0])
      if (placement.is_sharded()) return true;
    return false;
  });
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, Numbers shape, const std::vector<c10::IValue>& rest) {
    all.push_back(sample(op, {values(std::move(shape))}, rest).any_pending());
  };
  const std::vector<std::pair<Numbers, Numbers>> reshapes = {
      {{4, 6}, {24}},      {{4, 6}, {2, 2, 6}},  {{4, 6}, {4, 2, 3}}, {{4, 6}, {4, 6}},  {{5, 3}, {15}},
      {{5, 3}, {5, 1, 3}}, {{6}, {2, 3}},        {{6}, {3, 2}},       {{6}, {6, 1}},     {{1, 6}, {6}},
      {{2, 3, 4}, {6, 4}}, {{2, 3, 4}, {2, -1}}, {{2, 3, 4}, {4, 6}}, {{1}, {}},         {{}, {1, 1}},
      {{0, 3}, {0}},       {{0, 3}, {0, 3}},     {{4, 0}, {2, 2, 0}}, {{12}, {2, 3, 2}}, {{3, 1, 2}, {3, 2}}};
  for (const auto& [from, to] : reshapes) {
    add("aten::view", from, {to});
    add("aten::_unsafe_view", from, {to});
  }
  add("aten::_reshape_alias", {4, 6}, {Numbers{2, 2, 6}, Numbers{12, 6, 1}});
  add("aten::_reshape_alias", {5, 3}, {Numbers{15}, Numbers{1}});
  add("aten::expand", {5, 1}, {Numbers{5, 4}});
  add("aten::expand", {5, 3}, {Numbers{2, 5, 3}});
  add("aten::expand", {1, 3}, {Numbers{4, -1}});
  add("aten::expand", {}, {Numbers{3, 2}});
  add("aten::expand", {1}, {Numbers{1}});
  add("aten::permute", {5, 3, 2}, {Numbers{2, 0, 1}});
  add("aten::permute", {4, 1, 2}, {Numbers{-1, 1, 0}});
  add("aten::permute", {}, {Numbers{}});
  add("aten::transpose.int", {5, 3, 2}, {0, -1});
  add("aten::transpose.int", {4, 2}, {1, 1});
  add("aten::t", {5, 3}, {});
  add("aten::t", {4}, {});
  add("aten::unsqueeze", {5, 3}, {0});
  add("aten::unsqueeze", {5, 3}, {-1});
  add("aten::unsqueeze", {}, {0});
  add("aten::squeeze", {1, 5, 1, 3}, {});
  add("aten::squeeze", {5, 3}, {});
  add("aten::squeeze", {2, 1}, {});  // 2 rows on 2 ranks: local rows of size 1 stay
  add("aten::squeeze", {}, {});
  add("aten::squeeze.dim", {5, 1, 3}, {1});
  add("aten::squeeze.dim", {2, 3}, {0});
  add("aten::squeeze.dim", {1, 3}, {-2});
  add("aten::squeeze.dims", {1, 3, 1}, {Numbers{0, 2}});
  add("aten::squeeze.dims", {3, 1, 2}, {Numbers{0, 1}});
  for (const auto& shape : {Numbers{5, 3}, Numbers{1, 4}, Numbers{}}) {
    all.push_back(sample("aten::view_as_real", {at::complex(values(shape), values(shape))}));
    auto pairs = shape;
    pairs.push_back(2);
    all.push_back(sample("aten::view_as_complex", {values(pairs)}));
  }
  all.push_back(written("view", true, {4, 6}, [](const at::Tensor& x) { return x.view({2, 2, 6}); }));
  all.push_back(written("transpose", false, {5, 3}, [](const at::Tensor& x) { return x.transpose(0, 1); }));
  all.push_back(written("permute", false, {5, 3, 2}, [](const at::Tensor& x) {
    return x.permute({2, 0, 1});
  }));
  all.push_back(written("unsqueeze and squeeze", false, {5, 3},
                        [](const at::Tensor& x) { return x.unsqueeze(1).squeeze(1); }));
  all.push_back(written("select", true, {5, 3}, [](const at::Tensor& x) { return x.select(0, 1); }));
  all.push_back(written("slice", true, {5, 3}, [](const at::Tensor& x) { return x.slice(1, 1, 3); }));
  all.push_back(written("a whole slice", false, {5, 3}, [](const at::Tensor& x) { return x.slice(0); }));
  all.push_back(written("split", true, {5, 3}, [](const at::Tensor& x) { return x.split(2, 0)[1]; }));
  all.push_back(written("unbind", true, {5, 3}, [](const at::Tensor& x) { return x.unbind(1)[2]; }));
  all.push_back(program("reshape of a transposed tensor", {values({4, 6})}, [](const Tensors& x) {
                  return Tensors{x[0].t().reshape({24}), x[0].t().reshape({2, 3, 4}), x[0].flatten()};
                }).any_pending());
  all.push_back(program("heads", {values({2, 4, 6})}, [](const Tensors& x) {
                  return Tensors{x[0].view({2, 4, 3, 2}).transpose(1, 2),
                                 x[0].view({2, 4, 3, 2}).transpose(1, 2).reshape({6, 4, 2})};
                }).any_pending());
  all.push_back(program("a view after its base was written", {values({5, 3})}, [](const Tensors& x) {
    auto base = x[0].clone();
    auto view = base.t();
    base.mul_(2);
    return Tensors{view + 1};
  }));
  for (const char* name : {"transpose_", "t_", "unsqueeze_", "squeeze_"})
    all.push_back(
        program(name, {values({5, 1, 3}).select(1, 0).clone()}, [name = std::string(name)](const Tensors& x) {
          auto copy = x[0].clone();
          if (name == "transpose_") copy.transpose_(0, 1);
          if (name == "t_") copy.t_();
          if (name == "unsqueeze_") copy.unsqueeze_(1);
          if (name == "squeeze_") copy.squeeze_(0);
          return Tensors{copy * 2};
        }));
  return all;
}

const SampleFile file("views", samples);
TEST_CASE("views") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
