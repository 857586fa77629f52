// dtensor-run itself, with small shell programs as ranks.
#include <support/launch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

dtensor::testing::Outcome launch(const std::string& options, const std::string& script,
                             const std::string& redirection = "2>&1") {
  return dtensor::testing::launch(options + " sh -c '" + script + "' name", redirection);
}

}  // namespace

TEST_CASE("dtensor-run: torchrun's variables, output line by line with the rank") {
  const auto outcome = launch(
      "-n 2", "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR; printf end; echo no >&2", "2>/dev/null");
  CHECK(outcome.exit_code == 0);
  CHECK(sorted_lines(outcome.text) ==
        std::vector<std::string>{"[0] 0/2 0 127.0.0.1", "[0] end", "[1] 1/2 1 127.0.0.1", "[1] end"});
}

TEST_CASE("dtensor-run: several nodes") {
  const auto outcome = launch("-n 2 --nodes 3 --node-rank 1 --master host:77 --",
                              "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT");
  CHECK(sorted_lines(outcome.text) == std::vector<std::string>{"[2] 2/6 0 host:77", "[3] 3/6 1 host:77"});
}

TEST_CASE("dtensor-run: the first failure is named and gives the exit code; the rest is ended") {
  const auto outcome =
      launch("-n 3 --last-words 0.2 --grace 0.3",
             "case $RANK in 0) exit 0;; 1) sleep 0.3; exit 7;; *) trap \"\" TERM; sleep 20 & wait; "
             "wait;; esac");
  CHECK(outcome.exit_code == 7);
  CHECK_THAT(outcome.text, ContainsSubstring("rank 1 failed first") && ContainsSubstring("exit code 7") &&
                               ContainsSubstring("rank 0 ended first, with exit code 0, 0.") &&
                               ContainsSubstring("rank 2: ended by dtensor-run, killed by signal 9"));
}

TEST_CASE("dtensor-run: a signal as the end of a rank, and a program that is not there") {
  const auto killed = launch("-n 2 --last-words 0", "[ $RANK = 1 ] && kill -SEGV $$; sleep 20");
  CHECK(killed.exit_code == 128 + SIGSEGV);
  CHECK_THAT(killed.text, ContainsSubstring("rank 1 failed first") && ContainsSubstring("signal 11"));
  const auto absent = launch("-n 1 /no/such/program", "");
  CHECK(absent.exit_code == 127);
  CHECK_THAT(absent.text, ContainsSubstring("cannot run") && ContainsSubstring("/no/such/program"));
}

TEST_CASE("dtensor-run: a rank that was stopped failed before those that gave up waiting for it") {
  const auto outcome = launch("-n 2 --last-words 0 --grace 0.2", "[ $RANK = 1 ] && kill -STOP $$; sleep 0.5; exit 6");
  CHECK(outcome.exit_code == 6);
  CHECK_THAT(outcome.text, ContainsSubstring("rank 1 failed first") && ContainsSubstring("stopped by signal 19") &&
                               ContainsSubstring("rank 0: exit code 6"));
  const auto continued = launch("-n 2 --last-words 1",
                                "[ $RANK = 1 ] && { (sleep 0.2; kill -CONT $$) & kill -STOP $$; sleep 1; exit 0; }; "
                                "sleep 0.5; exit 6");
  CHECK_THAT(continued.text, ContainsSubstring("rank 0 failed first"));
}

TEST_CASE("dtensor-run: signals are passed on") {
  const auto outcome = launch("-n 2 --grace 5",
                              "trap \"echo got it; exit 0\" INT; [ $RANK = 0 ] && sleep 0.3 && kill -INT "
                              "$PPID; sleep 20 & wait; wait");
  CHECK(outcome.exit_code == 128 + SIGINT);
  CHECK_THAT(outcome.text, ContainsSubstring("[0] got it") && ContainsSubstring("[1] got it") &&
                               ContainsSubstring("ended by signal 2"));
}

TEST_CASE("dtensor-run: wrong usage") {
  for (const std::string options : {"-n 2 --nodes 2 --", "--nodes 2 --node-rank 2 --master a:1 --",
                                    "--master nonsense --", "--master a:99999 --", "-n 0 --"}) {
    CHECK(launch(options, "true").exit_code != 0);
  }
}
