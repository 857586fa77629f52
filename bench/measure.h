// What the benchmarks share: alternating rounds of two ways to do one thing, medians, and one JSON line per case.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Nanoseconds per call.
inline double time_calls(const std::function<void()>& run, int count) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) run();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / count;
}

// As many calls as take about `seconds`, after calls that warm the caches.
inline int choose_count(const std::function<void()>& run, double seconds) {
  time_calls(run, 3);
  return static_cast<int>(std::clamp(seconds * 1e9 / time_calls(run, 5), 3.0, 1e6));
}

// Both take turns in every round, so that a busy machine hurts them alike; the figures are medians over the rounds.
inline std::pair<double, double> compare(const std::function<void()>& plain, const std::function<void()>& here, int rounds,
                                         double seconds) {
  const int plain_count = choose_count(plain, seconds), here_count = choose_count(here, seconds);
  std::vector<double> plain_ns, here_ns;
  for (int round = 0; round < rounds; ++round) {
    plain_ns.push_back(time_calls(plain, plain_count));
    here_ns.push_back(time_calls(here, here_count));
  }
  return {median(plain_ns), median(here_ns)};
}

// {"bench": ..., "case": ..., then one number per key}; the unit is in the key ("here_ns").
inline void print_line(const char* bench, const std::string& name, const std::vector<std::pair<const char*, double>>& figures) {
  std::printf("{\"bench\": \"%s\", \"case\": \"%s\"", bench, name.c_str());
  for (const auto& [key, value] : figures) std::printf(", \"%s\": %.1f", key, value);
  std::printf("}\n");
  std::fflush(stdout);
}

// What main() returns after `body`: 1 and the error's text on stderr where it throws, without LibTorch's backtrace.
inline int run_main(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}

}  // namespace bench
