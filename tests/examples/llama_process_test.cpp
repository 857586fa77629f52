// The Llama example: Hugging Face's plan as it is, and a plan with sequence parallelism and shared key-value heads, train
// as one rank does.
#include <support/launch.h>

#include <catch2/catch_test_macros.hpp>

#include <sstream>
#include <vector>

namespace {

using namespace dtensor::testing;

std::vector<double> losses(int ranks, const std::string& plan) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../examples/plans" / plan;
  const auto outcome =
      launch("-n " + std::to_string(ranks) + " -- " + program_folder() + "/llama " + path.lexically_normal().string());
  INFO(outcome.text);
  REQUIRE(outcome.exit_code == 0);
  std::vector<double> found;
  std::istringstream lines(outcome.text);
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find("loss "); at != std::string::npos) found.push_back(std::stod(line.substr(at + 5)));
  return found;
}

}  // namespace

TEST_CASE("Llama under Hugging Face's plan and under one of this project trains as on one rank") {
  const auto expected = losses(1, "llama_hugging_face.json");
  REQUIRE(expected.size() == 5);
  CHECK(expected.back() < 0.8 * expected.front());
  const auto check = [&](int ranks, const std::string& plan) {
    INFO(ranks << " ranks, " << plan);
    const auto found = losses(ranks, plan);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(found[i] - expected[i]) < 2e-3);
  };
  check(2, "llama_hugging_face.json");
  check(2, "llama_tp_sp.json");
  check(4, "llama_tp_sp.json");  // fewer key-value heads than ranks
}
