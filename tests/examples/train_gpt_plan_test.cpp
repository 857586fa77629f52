// The job of examples/train_gpt on ranks, by the plans of examples/plans: the same losses and parameters as in one
// process, on every rank.
#include "distributed.h"
#include "train.h"
#include "train_gpt_support.h"

#include <dtensor/all.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cmath>
#include <string>
#include <vector>

using namespace train_gpt;
using train_gpt_test::largest_difference;
using train_gpt_test::project;
using train_gpt_test::small_job;

namespace {

// One result per rank.
std::vector<TrainResult> train_on_ranks(int ranks, const std::string& plan, const TrainOptions& options,
                                        std::vector<BytesByDim>* bytes = nullptr) {
  std::vector<TrainResult> results(static_cast<std::size_t>(ranks));
  if (bytes) bytes->resize(results.size());
  const std::string path = (project() / "examples/plans" / plan).string();
  dtensor::run_ranks(ranks, [&](int rank) {
    const auto setting = plan_setting(path, dtensor::World::current());
    const auto index = static_cast<std::size_t>(rank);
    results[index] = train(options, *setting, [&](const StepReport& report) {
      if (bytes) (*bytes)[index] = report.bytes;
    });
  });
  return results;
}

void check_same(const TrainResult& plain, const std::vector<TrainResult>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    INFO("rank " << rank);
    REQUIRE(plain.losses.size() == ranks[rank].losses.size());
    for (std::size_t i = 0; i < plain.losses.size(); ++i) {
      INFO("step " << i + 1);
      CHECK(std::abs(plain.losses[i] - ranks[rank].losses[i]) < 1e-9);
    }
    CHECK(largest_difference(plain, ranks[rank]) < 1e-8);
    CHECK(plain.sample == ranks[rank].sample);
  }
}

}  // namespace

TEST_CASE("a job by a plan equals the job in one process") {
  TrainOptions options = small_job();
  options.sample = 8;
  options.accumulate = GENERATE(1, 2);
  const std::string plan = GENERATE("gpt_tp.json", "gpt_tp_sp.json", "gpt_2d.json", "gpt_2d_sp.json");
  INFO(plan << ", " << options.accumulate << " micro-batches");
  std::vector<BytesByDim> bytes;
  const auto ranks = train_on_ranks(4, plan, options, &bytes);
  check_same(train(options, *plain_setting()), ranks);
  for (const BytesByDim& received : bytes) {
    CHECK(received.at("tp") > 0);
    CHECK((received.at("dp") > 0) == plan.starts_with("gpt_2d"));
  }
}

TEST_CASE("a job by a plan with uneven sizes equals the job in one process") {
  TrainOptions options = small_job();
  options.steps = 5;
  options.vocabulary = 257;
  options.hidden = 48;
  options.heads = 4;  // whole heads a rank; everything else is odd
  options.sequence = 15;
  options.batch = 7;
  const std::string plan = GENERATE("gpt_2d.json", "gpt_2d_sp.json");
  INFO(plan);
  check_same(train(options, *plain_setting()), train_on_ranks(4, plan, options));
}

TEST_CASE("a plan on one rank moves nothing") {
  const TrainOptions options = small_job();
  std::vector<BytesByDim> bytes;
  check_same(train(options, *plain_setting()), train_on_ranks(1, "gpt_tp_sp.json", options, &bytes));
  CHECK(bytes[0] == BytesByDim{{"dp", 0}, {"tp", 0}});
}

TEST_CASE("a job that differs in one thing is told apart") {
  TrainOptions options = small_job();
  options.steps = 3;
  const TrainResult plain = train(options, *plain_setting());
  options.clip = 0.99;
  const auto ranks = train_on_ranks(2, "gpt_tp.json", options);
  CHECK(largest_difference(plain, ranks[1]) > 1e-6);
}
