// Convolution, pooling, resampling, and normalisation over batches and groups.
#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

const auto none = c10::IValue();

std::vector<Sample> convolutions() {
  std::vector<Sample> all;
  const auto add = [&](at::Tensor input, at::Tensor weight, const c10::IValue& bias, bool transposed,
                       std::int64_t groups) {
    all.push_back(sample("aten::convolution", {input, weight, bias, Numbers{1}, Numbers{1}, Numbers{1},
                                               transposed, Numbers{0}, groups})
                      .reaches({"aten::convolution_backward"})
                      .only_dtensors()
                      .at_most(32));
  };
  for (const std::int64_t batch : {3, 1}) {
    add(values({batch, 2, 5}), values({3, 2, 3}), none, false, 1);
    add(values({batch, 2, 5}), values({3, 2, 3}), values({3}), false, 1);
    add(values({batch, 4, 5}), values({4, 2, 3}), values({4}), false, 2);
    add(values({batch, 2, 5}), values({2, 3, 3}), values({3}), true, 1);
  }
  all.push_back(
      sample("aten::convolution", {values({2, 2, 4, 4}), values({5, 2, 2, 2}), values({5}), Numbers{1, 1},
                                   Numbers{0, 0}, Numbers{1, 1}, false, Numbers{0, 0}, 1})
          .only_dtensors()
          .at_most(24));
  return all;
}

std::vector<Sample> poolings() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, std::vector<c10::IValue> arguments) -> Sample& {
    all.push_back(sample(op, std::move(arguments)).at_most(24));
    return all.back();
  };
  for (const auto& shape : {Numbers{3, 2, 4, 6}, Numbers{5, 4, 4}}) {
    auto deep = shape;
    deep.push_back(4);
    const Numbers two = {2, 2}, three = {2, 2, 2};
    add("aten::avg_pool2d", {values(shape), two}).reaches({"aten::avg_pool2d_backward"});
    add("aten::avg_pool3d", {values(deep), three}).reaches({"aten::avg_pool3d_backward"});
    add("aten::_adaptive_avg_pool2d", {values(shape), Numbers{3, 2}})
        .reaches({"aten::_adaptive_avg_pool2d_backward"});
    add("aten::_adaptive_avg_pool3d", {values(deep), Numbers{3, 2, 1}})
        .reaches({"aten::_adaptive_avg_pool3d_backward"});
    add("aten::max_pool2d_with_indices", {values(shape), two})
        .reaches({"aten::max_pool2d_with_indices_backward"});
    add("aten::max_pool3d_with_indices", {values(deep), three})
        .reaches({"aten::max_pool3d_with_indices_backward"});
    add("aten::adaptive_max_pool2d", {values(shape), Numbers{3, 2}})
        .reaches({"aten::adaptive_max_pool2d_backward"});
    add("aten::adaptive_max_pool3d", {values(deep), Numbers{3, 2, 1}})
        .reaches({"aten::adaptive_max_pool3d_backward"});
    const auto [pooled, where] = at::max_pool2d_with_indices(values(shape), two);
    add("aten::max_unpool2d", {pooled, where, Numbers{shape[shape.size() - 2], shape.back()}})
        .without_gradient();
    const auto [pooled3, where3] = at::max_pool3d_with_indices(values(deep), three);
    add("aten::max_unpool3d",
        {pooled3, where3, Numbers{deep[deep.size() - 3], deep[deep.size() - 2], deep.back()}, three,
         Numbers{0, 0, 0}})
        .without_gradient();
  }
  all.push_back(
      program(
          "fractional pooling",
          {values({3, 2, 5, 5}), values({3, 2, 2}, 0, 1), values({3, 2, 4, 4, 4}), values({3, 2, 3}, 0, 1)},
          [](const Tensors& x) {
            const auto [flat, where] = at::fractional_max_pool2d(x[0], {2, 2}, {3, 3}, x[1].detach());
            const auto [deep, place] = at::fractional_max_pool3d(x[2], {2, 2, 2}, {2, 2, 2}, x[3].detach());
            return Tensors{flat, where, deep, place};
          })
          .reaches({"aten::fractional_max_pool2d", "aten::fractional_max_pool3d",
                    "aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward"})
          .only_dtensors()
          .at_most(24));
  return all;
}

std::vector<Sample> resamplings() {
  std::vector<Sample> all;
  const auto add = [&](const std::string& op, std::vector<c10::IValue> arguments) -> Sample& {
    all.push_back(sample(op, std::move(arguments)).at_most(20));
    return all.back();
  };
  const auto line = values({3, 2, 4}), image = values({3, 2, 4, 3}), volume = values({3, 2, 2, 3, 2});
  const auto upsample = [&](const std::string& name, std::vector<c10::IValue> arguments) {
    add("aten::" + name, std::move(arguments)).reaches({"aten::" + name + "_backward"});
  };
  for (const std::string name : {"upsample_nearest", "_upsample_nearest_exact"}) {
    upsample(name + "1d", {line, Numbers{7}});
    upsample(name + "2d", {image, Numbers{7, 5}});
    upsample(name + "3d", {volume, Numbers{3, 4, 5}});
  }
  upsample("upsample_linear1d", {line, Numbers{7}, false});
  for (const std::string name :
       {"upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"})
    upsample(name, {image, Numbers{7, 5}, false});
  upsample("upsample_trilinear3d", {volume, Numbers{3, 4, 5}, true});
  add("aten::grid_sampler_2d", {image, values({3, 5, 2, 2}, -1, 1), 0, 0, false})
      .reaches({"aten::grid_sampler_2d_backward"});
  add("aten::grid_sampler_3d", {volume, values({3, 2, 3, 2, 3}, -1, 1), 0, 0, false})
      .reaches({"aten::grid_sampler_3d_backward"});
  for (const std::string name : {"aten::reflection_pad", "aten::replication_pad"}) {
    add(name + "1d", {line, Numbers{1, 2}}).reaches({name + "1d_backward"});
    add(name + "2d", {image, Numbers{1, 2, 1, 0}}).reaches({name + "2d_backward"});
    add(name + "3d", {volume, Numbers{1, 0, 1, 2, 0, 1}}).reaches({name + "3d_backward"});
  }
  for (const double value : {0.0, 1.5}) {
    add("aten::constant_pad_nd", {image, Numbers{1, 2}, value});
    add("aten::constant_pad_nd", {image, Numbers{0, 0, 1, -1}, value});
  }
  add("aten::im2col", {image, Numbers{2, 2}, Numbers{1, 1}, Numbers{0, 0}, Numbers{1, 1}})
      .reaches({"aten::col2im"});
  add("aten::col2im",
      {values({3, 8, 6}), Numbers{4, 3}, Numbers{2, 2}, Numbers{1, 1}, Numbers{0, 0}, Numbers{1, 1}});
  add("aten::pixel_shuffle", {values({3, 8, 2, 3}), 2});
  add("aten::pixel_unshuffle", {values({3, 2, 4, 6}), 2});
  return all;
}

std::vector<Sample> normalisations() {
  std::vector<Sample> all;
  const auto x = values({4, 3, 5}), weight = values({3}, 0.5, 2), bias = values({3});
  const auto mean = values({3}), variance = values({3}, 0.5, 2);
  for (const bool training : {true, false}) {
    all.push_back(
        program(training ? "batch_norm, training" : "batch_norm, evaluation",
                {x, weight, bias, mean, variance},
                [training](const Tensors& t) {
                  auto running_mean = t[3].detach().clone(), running_variance = t[4].detach().clone();
                  const auto result = at::native_batch_norm(t[0], t[1], t[2], running_mean, running_variance,
                                                            training, 0.1, 1e-5);
                  return Tensors{std::get<0>(result), running_mean, running_variance};
                })
            .reaches({"aten::native_batch_norm", "aten::native_batch_norm_backward"})
            .only_dtensors()
            .refuses([](const Combination& placements) {  // statistics written through a pending value
              for (std::size_t i = 3; i < 5; ++i)
                for (const auto& placement : placements[i].value_or(Placements()))
                  if (placement.is_partial()) return true;
              return false;
            })
            .at_most(32));
  }
  all.push_back(
      program("the other forms of batch_norm", {x, weight, bias, mean, variance},
              [](const Tensors& t) {
                auto a = t[3].detach().clone(), b = t[4].detach().clone();
                const auto legit = at::_native_batch_norm_legit(t[0], t[1], t[2], a, b, true, 0.1, 1e-5);
                const auto without = at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.1, 1e-5);
                const auto updated = at::_batch_norm_with_update(t[0], t[1], t[2], a, b, 0.1, 1e-5);
                return Tensors{std::get<0>(legit), std::get<0>(without), std::get<0>(updated), a, b};
              })
          .reaches({"aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
                    "aten::_batch_norm_with_update"})
          .without_gradient()
          .only_dtensors()
          .refuses([](const Combination& placements) {
            for (std::size_t i = 3; i < 5; ++i)
              for (const auto& placement : placements[i].value_or(Placements()))
                if (placement.is_partial()) return true;
            return false;
          })
          .at_most(24));
  for (const std::int64_t batch : {5, 2})
    all.push_back(sample("aten::native_group_norm",
                         {values({batch, 4, 3}), values({4}, 0.5, 2), values({4}), batch, 4, 3, 2, 1e-5})
                      .reaches({"aten::native_group_norm_backward"})
                      .only_dtensors()
                      .at_most(32));
  return all;
}

const SampleFile convolution_file("convolution", convolutions), pooling_file("pooling", poolings),
    resampling_file("resampling", resamplings), normalisation_file("batch normalisation", normalisations);

TEST_CASE("convolution") {
  CHECK(convolution_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}
TEST_CASE("pooling") { CHECK(pooling_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }
TEST_CASE("resampling") {
  CHECK(resampling_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}
TEST_CASE("normalisation over batches and groups") {
  CHECK(normalisation_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
