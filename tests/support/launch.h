// Programs of this build, run from tests: dtensor-run above all.
#pragma once

#include <catch2/catch_test_macros.hpp>

#include <sys/wait.h>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>

namespace dtensor::testing {

// Where the programs of this build are, the test's own among them.
inline std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

struct Outcome {
  int exit_code = -1;
  double seconds = 0;
  std::string text;                    // stdout, and stderr unless redirected
  std::map<int, std::string> of_rank;  // the lines that dtensor-run marked with a rank, without the mark
  std::string launcher;                // the other lines
};

// Runs a command by the shell and waits for its end. `redirection`: "2>&1" for both streams, "2>/dev/null" for stdout.
inline Outcome run_command(const std::string& command, const std::string& redirection = "2>&1") {
  const auto start = std::chrono::steady_clock::now();
  std::FILE* pipe = ::popen((command + " " + redirection).c_str(), "r");
  REQUIRE(pipe);
  Outcome outcome;
  char buffer[4096];
  while (const auto count = std::fread(buffer, 1, sizeof(buffer), pipe)) outcome.text.append(buffer, count);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (outcome.text.find("this build has no Gloo backend") != std::string::npos) SKIP("built without Gloo");
  std::istringstream lines(outcome.text);
  for (std::string line; std::getline(lines, line);) {
    const auto close = line.find("] ");
    if (line[0] == '[' && close != std::string::npos && line.find_first_not_of("0123456789", 1) == close)
      outcome.of_rank[std::stoi(line.substr(1, close - 1))] += line.substr(close + 2) + "\n";
    else
      outcome.launcher += line + "\n";
  }
  return outcome;
}

// dtensor-run with these arguments; skips the test where it is not built.
inline Outcome launch(const std::string& arguments, const std::string& redirection = "2>&1") {
  const auto launcher = program_folder() + "/dtensor-run";
  if (!std::filesystem::exists(launcher)) SKIP("built without the command-line programs");
  return run_command(launcher + " " + arguments, redirection);
}

}  // namespace dtensor::testing
