#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, Numbers shape, const std::vector<c10::IValue>& rest) -> Sample& {
    all.push_back(sample(op, {values(std::move(shape))}, rest).any_pending().at_most(16));
    return all.back();
  };
  for (const auto& shape : {Numbers{5, 3}, Numbers{1, 4, 2}}) {
    for (const auto& dims : {Numbers{0}, Numbers{-1}, Numbers{0, 1}, Numbers{}})
      add("aten::flip", shape, {dims});
    add("aten::roll", shape, {Numbers{2}, Numbers{0}});
    add("aten::roll", shape, {Numbers{1, -1}, Numbers{0, -1}});
    add("aten::roll", shape, {Numbers{3}, Numbers{}});
    for (const std::int64_t k : {1, 2, -1, 4}) add("aten::rot90", shape, {k, Numbers{0, 1}});
    Numbers repeats(shape.size(), 1);
    add("aten::repeat", shape, {repeats});
    repeats[1] = 2;
    add("aten::repeat", shape, {repeats});
    repeats.insert(repeats.begin(), 3);
    add("aten::repeat", shape, {repeats});
    add("aten::unfold", shape, {1, 2, 1}).reaches({"aten::unfold_backward"});
    add("aten::unfold", shape, {-1, 2, 3}).reaches({"aten::unfold_backward"});
    add("aten::unfold_copy", shape, {1, 2, 1});
    for (const char* op : {"aten::alias_copy", "aten::detach_copy", "aten::lift_fresh_copy", "aten::t_copy"})
      if (shape.size() == 2 || std::string(op) != "aten::t_copy") add(op, shape, {});
    add("aten::transpose_copy.int", shape, {0, -1});
    add("aten::unsqueeze_copy", shape, {1});
    add("aten::squeeze_copy", shape, {});
    add("aten::squeeze_copy.dim", shape, {0});
    add("aten::squeeze_copy.dims", shape, {Numbers{0, 1}});
    add("aten::slice_copy.Tensor", shape, {1, 1, 3});
    add("aten::slice_copy.Tensor", shape, {0, c10::IValue(), c10::IValue(), 1});
    add("aten::narrow_copy", shape, {1, 1, 2});
    add("aten::select_copy.int", shape, {0, 0});
    add("aten::select_copy.int", shape, {1, -1});
    add("aten::split_copy.Tensor", shape, {2, 1});
    add("aten::split_with_sizes_copy", shape, {Numbers{1, shape[1] - 1}, 1});
    // Plain ones are views all the same, with the strides of self.
    add("aten::unsafe_split.Tensor", shape, {2, 1}).any_strides();
    add("aten::unsafe_split_with_sizes", shape, {Numbers{1, shape[1] - 1}, 1}).any_strides();
    add("aten::unbind_copy.int", shape, {1});
  }
  add("aten::repeat", {}, {Numbers{2}});
  add("aten::repeat", {3}, {Numbers{0}});
  add("aten::permute_copy", {5, 3, 2}, {Numbers{2, 0, 1}});
  add("aten::expand_copy", {5, 1}, {Numbers{2, 5, 4}});
  for (const char* op : {"aten::view_copy", "aten::_reshape_copy"}) {
    add(op, {4, 6}, {Numbers{2, 2, 6}});
    add(op, {5, 3}, {Numbers{15}});
  }
  add("aten::_reshape_alias_copy", {4, 6}, {Numbers{2, 2, 6}, Numbers{12, 6, 1}}).without_gradient();
  const auto complex = at::complex(values({5, 3}), values({5, 3}));
  for (const char* op : {"aten::_conj_copy", "aten::_neg_view_copy", "aten::view_as_real_copy"})
    all.push_back(sample(op, {complex}).without_gradient());
  all.push_back(sample("aten::view_as_complex_copy", {values({5, 3, 2})}).without_gradient());
  const auto write = [&](const char* op, Numbers shape, Numbers source,
                         const std::vector<c10::IValue>& rest) {
    all.push_back(sample(op, {values(std::move(shape)), values(std::move(source))}, rest).at_most(24));
  };
  const c10::IValue none;
  write("aten::slice_scatter", {5, 3}, {3, 3}, {0, 1, 4});
  write("aten::slice_scatter", {5, 3}, {2, 3}, {0, -4, none, 2});
  write("aten::slice_scatter", {2, 7}, {2, 4}, {1, none, none, 2});
  write("aten::slice_scatter", {1, 4}, {0, 4}, {0, 1, 1});
  write("aten::select_scatter", {5, 3}, {3}, {0, 3});
  write("aten::select_scatter", {1, 4}, {1}, {1, -1});
  write("aten::select_scatter", {2, 3, 4}, {2, 4}, {1, 2});
  all.push_back(sample("aten::_stack", {Tensors{values({5, 3}), values({5, 3})}, 1}).at_most(16));
  all.push_back(sample("aten::cat", {Tensors{values({0}), values({5, 3}), values({2, 3})}, 0}).at_most(24));
  all.push_back(program("tile and repeat_interleave", {values({4, 3})}, [](const Tensors& x) {
    return Tensors{at::tile(x[0], {2, 1}), at::repeat_interleave(x[0], 2, 0),
                   at::repeat_interleave(x[0], 2, 1)};
  }));
  return all;
}

const SampleFile file("rearranging", samples);
TEST_CASE("rearranging") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
