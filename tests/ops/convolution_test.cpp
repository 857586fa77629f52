// Convolutions cut in their channels and groups; image_test.cpp has the plain forms.
#include "brute_force.h"

#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  const auto add = [&](Numbers input, Numbers weight, const c10::IValue& bias, std::vector<c10::IValue> rest) {
    std::vector<c10::IValue> arguments = {values(std::move(input)), values(std::move(weight)), bias};
    for (auto& value : rest) arguments.push_back(value);
    all.push_back(sample("aten::convolution", std::move(arguments))
                      .reaches({"aten::convolution_backward"})
                      .at_most(40));
  };
  const Numbers one = {1}, none_added = {0};
  // Input channels in parts, empty ones on three ranks.
  add({2, 4, 5}, {2, 4, 2}, values({2}), {one, one, one, false, none_added, 1});
  add({2, 3, 5}, {3, 2, 2}, values({2}), {Numbers{2}, one, one, true, one, 1});
  add({2, 1, 5}, {1, 1, 2}, values({1}), {one, none_added, Numbers{2}, false, none_added, 1});
  // Groups: as many as channels, two a group, transposed.
  add({2, 6, 5}, {6, 1, 3}, values({6}), {one, one, one, false, none_added, 6});
  add({3, 4, 5}, {8, 2, 2}, none, {one, none_added, one, false, none_added, 2});
  add({2, 4, 5}, {4, 3, 2}, values({6}), {Numbers{2}, none_added, one, true, none_added, 2});
  add({2, 6, 4, 3}, {3, 2, 2, 3}, values({3}), {Numbers{2, 1}, Numbers{0, 1}, Numbers{1, 1}, false, Numbers{0, 0}, 3});
  // Cut images: rows of the neighbours and of ranks beyond them, padding larger than a piece, outputs of fewer rows than ranks,
  // rows that no output reads.
  add({1, 2, 7}, {2, 2, 5}, values({2}), {one, Numbers{2}, one, false, none_added, 1});
  add({2, 1, 9}, {2, 1, 3}, none, {Numbers{4}, none_added, one, false, none_added, 1});
  add({1, 1, 5}, {1, 1, 2}, values({1}), {Numbers{3}, Numbers{4}, Numbers{2}, false, none_added, 1});
  add({1, 2, 4}, {2, 1, 4}, values({2}), {one, none_added, one, false, none_added, 2});
  add({1, 1, 6, 5}, {2, 1, 3, 2}, values({2}), {Numbers{2, 1}, Numbers{1, 0}, Numbers{1, 2}, false, Numbers{0, 0}, 1});
  add({1, 1, 4, 3, 5}, {1, 1, 2, 3, 2}, none, {one, one, one, false, none_added, 1});
  // Pending input or weight: the bias counts once, whatever the reduction.
  all.push_back(sample("aten::convolution", {values({2, 2, 4}), values({3, 2, 2}), values({3}), one, one, one, false,
                                             none_added, 1})
                    .any_pending()
                    .at_most(60));
  all.push_back(sample("aten::_convolution", {values({2, 2, 4}), values({3, 2, 2}), values({3}), one, one, one, false,
                                              none_added, 1, false, false, false, false})
                    .at_most(16));
  all.push_back(sample("aten::conv_tbc", {values({4, 3, 2}), values({2, 2, 3}), values({3}), 1}).only_dtensors().at_most(24));
  all.push_back(program("convolution in channels-last memory", {values({2, 4, 3, 3}), values({2, 4, 2, 2})},
                        [](const Tensors& x) {
                          return Tensors{at::conv2d(x[0].contiguous(at::MemoryFormat::ChannelsLast), x[1])};
                        })
                    .any_strides()
                    .at_most(16));
  return all;
}

const SampleFile file("convolution channels", samples);
TEST_CASE("convolution, channels and groups") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
