// Batch statistics over cut batches, groups cut between ranks; image_test.cpp has the plain forms.
#include "brute_force.h"

#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

bool has_pending_statistics(const Combination& placements) {
  for (std::size_t i = 3; i < placements.size(); ++i)
    for (const auto& placement : placements[i].value_or(Placements()))
      if (placement.is_partial()) return true;
  return false;
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto none = c10::IValue();
  // Large enough that the batch or the image stays cut instead of being moved; the last one is small.
  for (const auto& shape : {Numbers{5, 1, 1500}, Numbers{2, 2, 70, 80}, Numbers{4, 3}}) {
    const Numbers channels = {shape[1]};
    for (const bool training : {true, false})
      all.push_back(program(training ? "batch_norm, training" : "batch_norm, evaluation",
                            {values(shape), values(channels, 0.5, 2), values(channels), values(channels),
                             values(channels, 0.5, 2)},
                            [training](const Tensors& t) {
                              auto mean = t[3].detach().clone(), variance = t[4].detach().clone();
                              const auto [result, batch_mean, deviation] =
                                  at::native_batch_norm(t[0], t[1], t[2], mean, variance, training, 0.1, 1e-5);
                              return Tensors{result, batch_mean.detach(), deviation.detach(), mean, variance};
                            })
                        .refuses(has_pending_statistics)
                        .only_dtensors()
                        .at_most(40));
    all.push_back(sample("aten::native_batch_norm", {values(shape), none, none, none, none, true, 0.1, 1e-5})
                      .reaches({"aten::native_batch_norm_backward"}));
    all.push_back(sample("aten::_native_batch_norm_legit.no_stats",
                         {values(shape), values(channels, 0.5, 2), none, true, 0.1, 1e-5})
                      .without_gradient()
                      .at_most(24));
    all.push_back(program("the forms that mark their statistics",
                          {values(shape), values(channels, 0.5, 2), values(channels), values(channels),
                           values(channels, 0.5, 2)},
                          [](const Tensors& t) {
                            auto mean = t[3].detach().clone(), variance = t[4].detach().clone();
                            const auto legit =
                                at::_native_batch_norm_legit(t[0], t[1], t[2], mean, variance, true, 0.2, 1e-5);
                            const auto updated =
                                at::_batch_norm_with_update(t[0], t[1], t[2], mean, variance, 0.2, 1e-5);
                            return Tensors{std::get<0>(legit), std::get<0>(updated), mean, variance};
                          })
                      .without_gradient()
                      .refuses(has_pending_statistics)
                      .only_dtensors()
                      .at_most(24));
  }
  all.push_back(program("batch_norm in float16 with parameters in float32",
                        {integers({4, 2, 5000}, -3, 4).to(at::kBFloat16), values({2}, 0.5, 2, at::kFloat),
                         values({2}, -2, 2, at::kFloat)},
                        [](const Tensors& t) {
                          // Pending parts add up to whole numbers but for their rounding.
                          const auto result = at::native_batch_norm(t[0].round(), t[1], t[2], {}, {}, true, 0.1, 1e-5);
                          // Rounded values differ in the last place; statistics do not.
                          return Tensors{std::get<1>(result).detach(), std::get<2>(result).detach()};
                        })
                    .without_gradient()
                    .only_dtensors()
                    .at_most(24));
  for (const std::int64_t groups : {6, 2, 3}) {
    all.push_back(sample("aten::native_group_norm", {values({2, 6, 3}), values({6}, 0.5, 2), values({6}), 2, 6, 3, groups,
                                                     1e-5})
                      .reaches({"aten::native_group_norm_backward"})
                      .at_most(40));
    all.push_back(sample("aten::native_group_norm", {values({5, 6}), none, none, 5, 6, 1, groups, 1e-5}).at_most(24));
  }
  all.push_back(program("group_norm and instance_norm", {values({3, 4, 2, 3}), values({4}, 0.5, 2), values({4})},
                        [](const Tensors& x) {
                          return Tensors{at::group_norm(x[0], 2, x[1], x[2]),
                                         at::instance_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-5, false)};
                        })
                    .only_dtensors()
                    .at_most(24));
  return all;
}

const SampleFile file("cut batches and groups", samples);
TEST_CASE("batch statistics over cut batches, groups between ranks") {
  CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
