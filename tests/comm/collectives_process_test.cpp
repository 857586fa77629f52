// Ranks as processes, over shared memory and over Gloo, started by dtensor-run: values, and how the survivors end when one rank fails.
// tests/comm/worker/process_worker.cpp has the scenarios. What start-up, the store and the abort note do is one mechanism for
// both; it is tried over the default, shared memory.
#include <support/launch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <map>
#include <string>

using Catch::Matchers::ContainsSubstring;
using dtensor::testing::Outcome;

namespace {

Outcome run_scenario(int ranks, const std::string& scenario, int last_words = 20) {
  return dtensor::testing::launch("-n " + std::to_string(ranks) + " --last-words " + std::to_string(last_words) +
                              " --grace 1 -- " + dtensor::testing::program_folder() + "/process_worker " + scenario);
}

// That a rank ended with a CommError about its sixth all-reduce over dp, which says `part`.
void check_survivor(const Outcome& outcome, int rank, const std::string& part) {
  const auto found = outcome.of_rank.find(rank);
  REQUIRE(found != outcome.of_rank.end());
  CHECK_THAT(found->second,
             ContainsSubstring("CommError: all_reduce, sequence 5, on group 'dp' (ranks 0, 1, 2, 3), "
                               "rank " +
                               std::to_string(rank)) &&
                 ContainsSubstring(part));
}

}  // namespace

TEST_CASE("processes: every collective, dtype, reduction and size") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  for (const int ranks : {3, 4}) {
    const auto outcome = run_scenario(ranks, "collectives " + backend);
    INFO(outcome.text);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.launcher == "");
    CHECK(outcome.of_rank == std::map<int, std::string>{});  // nothing to say, no warnings at the end
  }
}

TEST_CASE("processes: K68 meshes built by members only and in different order") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  const auto outcome = run_scenario(4, "meshes " + backend);
  INFO(outcome.text);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.of_rank == std::map<int, std::string>{});
}

TEST_CASE("processes: K69 a killed rank is named by the survivors") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  const auto outcome = run_scenario(4, "killed " + backend);
  INFO(outcome.text);
  for (const int rank : {0, 1, 3}) check_survivor(outcome, rank, "missing: rank 2 (does not respond");
  CHECK(outcome.exit_code == 128 + 9);
  CHECK_THAT(outcome.launcher,
             ContainsSubstring("rank 2 failed first") && ContainsSubstring("killed by signal 9"));
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: K69 those who wait for others than the killed rank end, too") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  const auto outcome = run_scenario(4, "killed_elsewhere " + backend);
  INFO(outcome.text);
  for (const int rank : {0, 1, 2}) {
    CHECK_THAT(outcome.of_rank.at(rank), ContainsSubstring("CommError: all_reduce, sequence ") &&
                                             ContainsSubstring("on group '") && ContainsSubstring("rank 3"));
  }
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: the death of rank 0, which serves the store") {
  const auto outcome = run_scenario(4, "store_killed");
  INFO(outcome.text);
  for (const int rank : {1, 2, 3}) check_survivor(outcome, rank, "missing: rank 0");
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: a stopped rank is named after the time-out") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  const auto outcome = run_scenario(4, "stopped " + backend, 6);
  INFO(outcome.text);
  for (const int rank : {0, 2, 3}) check_survivor(outcome, rank, "missing: rank 1 (does not respond");
  CHECK_THAT(outcome.of_rank.at(0) + outcome.of_rank.at(2) + outcome.of_rank.at(3),
             ContainsSubstring("timed out after 4000 ms"));
  CHECK_THAT(outcome.launcher, ContainsSubstring("rank 1 failed first") && ContainsSubstring("stopped by signal"));
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: rank 0 stopped, so that the store does not answer") {
  const auto outcome = run_scenario(4, "store_stopped", 6);
  INFO(outcome.text);
  for (const int rank : {1, 2, 3}) {
    check_survivor(outcome, rank, "missing: rank 0 (its store does not answer");
    check_survivor(outcome, rank, "timed out after 3000 ms");
  }
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: a rank that ends early, in order") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  const auto outcome = run_scenario(4, "left " + backend);
  INFO(outcome.text);
  for (const int rank : {0, 2, 3}) check_survivor(outcome, rank, "rank 1 has already ended");
  CHECK(outcome.exit_code == 3);
  CHECK_THAT(outcome.launcher, ContainsSubstring("rank 1") && ContainsSubstring("exit code 0"));
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: a rank that comes late finds the time-out of its peers") {
  const auto outcome = run_scenario(4, "late");
  INFO(outcome.text);
  for (const int rank : {0, 2, 3}) check_survivor(outcome, rank, "missing: rank 1 (has not called it)");
  check_survivor(outcome, 1, "timed out after 2000 ms");
}

TEST_CASE("processes: what is done just as a slice of waiting ends has not failed") {
  const auto outcome = run_scenario(4, "late_by_a_slice gloo");
  INFO(outcome.text);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.of_rank == std::map<int, std::string>{});
}

TEST_CASE("processes: an abort note reaches everybody within five seconds") {
  const auto outcome = run_scenario(4, "aborted");
  INFO(outcome.text);
  for (const int rank : {0, 2, 3})
    check_survivor(outcome, rank, "aborted by rank 1: out of memory in step 5");
  CHECK(outcome.seconds < 40);  // far below the time-out of 100 s, on a busy machine, too
}

TEST_CASE("processes: an uncaught exception is told to the peers") {
  const auto outcome = run_scenario(4, "uncaught");
  INFO(outcome.text);
  for (const int rank : {0, 2, 3}) check_survivor(outcome, rank, "rank 1: uncaught exception: no such file");
  CHECK_THAT(outcome.launcher, ContainsSubstring("rank 1") && ContainsSubstring("killed by signal 6"));
}

TEST_CASE("processes: who receives from a dead rank ends") {
  const std::string backend = GENERATE("shared_memory", "gloo");
  const auto outcome = run_scenario(2, "receives_from_the_dead " + backend);
  INFO(outcome.text);
  CHECK_THAT(outcome.of_rank.at(0),
             ContainsSubstring("CommError: recv from rank 1, sequence 0, on group 'world'") &&
                 ContainsSubstring("missing: rank 1"));
}

TEST_CASE("processes: a rank missing at start-up is named") {
  const auto outcome = run_scenario(3, "missing_at_start");
  INFO(outcome.text);
  for (const int rank : {0, 1}) {
    CHECK_THAT(outcome.of_rank.at(rank),
               ContainsSubstring("start-up") && ContainsSubstring("missing: rank 2 of 3"));
  }
  CHECK_THAT(outcome.of_rank.at(2), ContainsSubstring("CommError"));
}
