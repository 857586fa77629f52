#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const std::int64_t batch : {3, 4, 5}) {
    const auto logits = values({6, batch, 4});
    const Numbers input_lengths = Numbers{6, 5, 6, 4, 6}, target_lengths = Numbers{1, 3, 2, 2, 1};
    const Numbers inputs(input_lengths.begin(), input_lengths.begin() + batch),
        lengths(target_lengths.begin(), target_lengths.begin() + batch);
    std::int64_t joined = 0;
    for (auto length : lengths) joined += length;
    for (const bool padded : {true, false}) {
      const auto targets = padded ? integers({batch, 3}, 1, 4) : integers({joined}, 1, 4);
      for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum})
        all.push_back(program("ctc_loss", {logits, targets}, [=](const Tensors& x) {
                        return Tensors{at::ctc_loss(x[0].log_softmax(2), x[1], inputs, lengths, 0, reduction)};
                      }).reaches({"aten::_ctc_loss", "aten::_ctc_loss_backward"}).at_most(24));
    }
  }
  return all;
}

const SampleFile file("ctc loss", samples);
TEST_CASE("ctc loss") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
