#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <limits>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  const char* flash = "aten::_scaled_dot_product_flash_attention_for_cpu";
  for (const auto& shape : {Numbers{2, 4, 5, 6}, Numbers{3, 2, 4, 2}, Numbers{1, 3, 2, 4}})
    for (const bool causal : {false, true}) {
      const auto make = [&] { return values(shape, -1, 1); };
      all.push_back(sample(flash, {make(), make(), make(), 0.0, causal})
                        .reaches({"aten::_scaled_dot_product_flash_attention_for_cpu_backward"})
                        .any_strides()  // of logsumexp
                        .only_dtensors());
      all.push_back(
          program("scaled_dot_product_attention", {make(), make(), make()}, [causal](const Tensors& x) {
            return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, causal)};
          }).only_dtensors());
    }
  for (const auto& mask : {Numbers{5, 5}, Numbers{2, 1, 5, 5}, Numbers{1, 4, 5, 5}})
    all.push_back(program("scaled_dot_product_attention, masked",
                          {values({2, 4, 5, 6}), values({2, 4, 5, 6}), values({2, 4, 5, 6}), values(mask)},
                          [](const Tensors& x) {
                            return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2], x[3].detach())};
                          }));
  all.push_back(program("scaled_dot_product_attention in 3-D",
                        {values({3, 5, 4}), values({3, 5, 4}), values({3, 5, 4})},
                        [](const Tensors& x) {
                          return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true)};
                        })
                    .only_dtensors());
  // A query that may attend to nothing gives 0; the scale may be negative.
  for (const bool boolean : {false, true})
    all.push_back(program("scaled_dot_product_attention in 3-D, a row hidden",
                          {values({3, 5, 4}), values({3, 6, 4}), values({3, 6, 2})},
                          [boolean](const Tensors& x) {
                            auto visible = at::ones({5, 6}, at::kBool);
                            visible[1].fill_(false);
                            visible[3][2].fill_(false);
                            const auto hidden = at::zeros({5, 6}, at::kDouble)
                                                    .masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
                            const auto mask = boolean ? visible : hidden;
                            return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2], mask, 0.0, false, -0.7)};
                          })
                      .only_dtensors());
  all.push_back(sample("aten::_fused_sdp_choice",
                       {values({2, 4, 5, 6}), values({2, 4, 5, 6}), values({2, 4, 5, 6}), none})
                    .without_gradient());
  return all;
}

const SampleFile file("attention", samples);
TEST_CASE("attention by heads") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
