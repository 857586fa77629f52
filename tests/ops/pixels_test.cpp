#include "brute_force.h"

#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, std::vector<c10::IValue> arguments) -> Sample& {
    all.push_back(sample(op, std::move(arguments)));
    return all.back();
  };
  add("aten::pixel_shuffle", {values({2, 12, 2, 3}), 2}).any_pending();
  add("aten::pixel_shuffle", {values({4, 4, 3}), 2}).reaches({"aten::pixel_unshuffle"});
  add("aten::pixel_unshuffle", {values({2, 3, 4, 6}), 2}).any_pending();
  add("aten::pixel_unshuffle", {values({1, 6, 9}), 3}).reaches({"aten::pixel_shuffle"});
  add("aten::channel_shuffle", {values({2, 6, 3}), 3}).any_pending();
  add("aten::channel_shuffle", {values({1, 4, 2, 5}), 2});
  const Numbers one = {1, 1}, two = {2, 2}, zero = {0, 0};
  add("aten::im2col", {values({2, 6, 4, 3}), two, one, zero, one}).reaches({"aten::col2im"});
  add("aten::im2col", {values({4, 4, 5}), Numbers{2, 3}, Numbers{1, 2}, one, Numbers{2, 1}});
  add("aten::col2im", {values({3, 16, 6}), Numbers{4, 3}, two, one, zero, one}).reaches({"aten::im2col"});
  add("aten::col2im", {values({12, 6}), Numbers{4, 3}, two, one, zero, one});
  for (const std::int64_t batch : {3, 1, 4}) {
    add("aten::affine_grid_generator", {values({batch, 2, 3}), Numbers{batch, 2, 3, 4}, false});
    add("aten::affine_grid_generator", {values({batch, 3, 4}), Numbers{batch, 1, 2, 2, 3}, true});
  }
  const auto image = values({3, 2, 4, 3});
  for (const std::int64_t mode : {0, 1, 2})  // bilinear, nearest, bicubic
    add("aten::grid_sampler_2d", {image, values({3, 2, 3, 2}, -1.2, 1.2), mode, mode, mode == 1})
        .reaches({"aten::grid_sampler_2d_backward"})
        .at_most(32);
  return all;
}

const SampleFile file("pixels", samples);
TEST_CASE("pixels between image and channels") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
