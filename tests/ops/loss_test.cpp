#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  for (const std::int64_t reduction : {0, 1, 2}) {
    for (const auto& [batch, classes] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{5, 4}, {4, 3}, {1, 3}, {2, 5}}) {
      auto target = integers({batch}, 0, classes);
      all.push_back(
          sample("aten::nll_loss_forward", {values({batch, classes}), target, none, reduction, -100})
              .reaches({"aten::nll_loss_backward"}));
      all.push_back(
          sample("aten::nll_loss_forward", {values({batch, classes}), target, values({classes}, 0.5, 2),
                                            reduction, target[0].item<std::int64_t>()})
              .without_gradient());
      if (batch > 1)
        all.push_back(sample("aten::nll_loss_forward", {values({batch, classes}), target, none, reduction,
                                                        target[0].item<std::int64_t>()}));
    }
    all.push_back(sample("aten::nll_loss_forward", {values({4}), integers({}, 0, 4), none, reduction, -100}));
    for (const auto& shape : {Numbers{5, 3}, Numbers{1, 4}, Numbers{}, Numbers{2, 2, 3}})
      all.push_back(sample("aten::mse_loss", {values(shape), values(shape), reduction})
                        .reaches({"aten::mse_loss_backward"}));
    all.push_back(sample("aten::mse_loss", {values({5, 3}), values({1, 3}), reduction}).without_gradient());
    all.push_back(sample("aten::soft_margin_loss", {values({5, 3}), integers({5, 3}, 0, 2), reduction})
                      .reaches({"aten::soft_margin_loss_backward"}));
    for (const char* name : {"aten::smooth_l1_loss", "aten::huber_loss"})
      all.push_back(sample(name, {values({5, 3}), values({5, 3}), reduction})
                        .reaches({std::string(name) + "_backward"}));
    all.push_back(sample("aten::binary_cross_entropy",
                         {values({5, 3}, 0.1, 0.9), values({5, 3}, 0, 1), none, reduction})
                      .reaches({"aten::binary_cross_entropy_backward"})
                      .only_dtensors());  // its formula for the target writes to a plain input's derivatives
    all.push_back(sample("aten::binary_cross_entropy",
                         {values({5, 3}, 0.1, 0.9), values({5, 3}, 0, 1), values({3}, 0.5, 2), reduction})
                      .without_gradient());
    all.push_back(
        sample("aten::multi_margin_loss", {values({5, 4}), integers({5}, 0, 4), 1, 1.0, none, reduction})
            .reaches({"aten::multi_margin_loss_backward"}));
    all.push_back(sample("aten::multi_margin_loss",
                         {values({5, 4}), integers({5}, 0, 4), 1, 1.0, values({4}, 0.5, 2), reduction})
                      .without_gradient());
    all.push_back(
        sample("aten::multilabel_margin_loss_forward", {values({5, 4}), integers({5, 4}, -1, 4), reduction})
            .reaches({"aten::multilabel_margin_loss_backward"}));
    all.push_back(sample("aten::nll_loss2d_forward",
                         {values({3, 3, 2, 2}), integers({3, 2, 2}, 0, 3), none, reduction, 1})
                      .reaches({"aten::nll_loss2d_backward"}));
    all.push_back(sample("aten::nll_loss2d_forward",
                         {values({3, 3, 2, 2}), integers({3, 2, 2}, 0, 3), values({3}, 0.5, 2), reduction, 1})
                      .without_gradient());
    for (const double smoothing : {0.0, 0.2}) {
      all.push_back(program("cross_entropy_loss", {values({5, 4}), integers({5}, 0, 4)},
                            [=](const Tensors& x) {
                              return Tensors{at::cross_entropy_loss(x[0], x[1], {}, reduction, 1, smoothing)};
                            })
                        .reaches({"dtensor::cross_entropy_rows", "dtensor::cross_entropy_gradient"}));
      all.push_back(program("cross_entropy_loss", {values({2, 3, 4}), integers({2, 4}, 0, 3)},
                            [=](const Tensors& x) {
                              return Tensors{at::cross_entropy_loss(x[0], x[1], {}, reduction, -100, smoothing)};
                            })
                        .reaches({"dtensor::cross_entropy_rows", "dtensor::cross_entropy_gradient"}));
      // Of plain logits and a distributed target the stock formula writes a distributed mask into a plain tensor.
      if (smoothing > 0)
        for (auto one = all.end() - 2; one != all.end(); ++one) one->only_dtensors();
    }
    const char* binary = "aten::binary_cross_entropy_with_logits";
    for (const auto& shape : {Numbers{5, 3}, Numbers{4}, Numbers{}})
      all.push_back(sample(binary, {values(shape), values(shape, 0, 1), none, none, reduction}));
    all.push_back(sample(binary, {values({5, 3}), values({5, 3}, 0, 1), values({3}, 0.5, 2),
                                  values({3}, 0.5, 2), reduction})
                      .without_gradient());
  }
  return all;
}

const SampleFile file("losses", samples);
TEST_CASE("losses") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
