// dtensor-run: starts one process per rank on this node, with torchrun's variables.
//
//   dtensor-run -n 4 -- program args...                                             one node
//   dtensor-run -n 8 --nodes 2 --node-rank 0 --master host0:29500 -- program args...   on each of several nodes
//
// Output lines get "[rank] " in front. When a rank fails, the others have a moment to say what they saw, are then
// ended, and the report at the end says which rank failed first and how.
#include "rank_process.h"

#include <CLI/CLI.hpp>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

using dtensor::tools::Clock;
using dtensor::tools::RankProcess;
using std::chrono::milliseconds;
using Variables = std::map<std::string, std::string>;

struct Options {
  int ranks = 1;  // of this node
  int nodes = 1, node_rank = 0;
  std::string master;
  double last_words = 3, grace = 5;  // seconds
  std::vector<std::string> command;
};

volatile std::sig_atomic_t caught_signal = 0;

void catch_signal(int number) {
  if (number != SIGCHLD) caught_signal = number;  // SIGCHLD only ends the poll
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = catch_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaction(number, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

std::string seconds(Clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

Variables variables_of(const Options& options, int local_rank, const std::string& host, int port) {
  Variables variables = {{"RANK", std::to_string(options.node_rank * options.ranks + local_rank)},
                         {"WORLD_SIZE", std::to_string(options.nodes * options.ranks)},
                         {"LOCAL_RANK", std::to_string(local_rank)},
                         {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
                         {"GROUP_RANK", std::to_string(options.node_rank)},
                         {"MASTER_ADDR", host},
                         {"MASTER_PORT", std::to_string(port)},
                         {"DTENSOR_RUN", "1"}};
  if (!std::getenv("OMP_NUM_THREADS")) {  // ranks share the cores
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    variables["OMP_NUM_THREADS"] = std::to_string(std::max(1, cores / options.ranks));
  }
  return variables;
}

class Launcher {
 public:
  explicit Launcher(const Options& options) : options_(options) {}

  int run(const std::string& host, int port) {
    for (int local = 0; local < options_.ranks; ++local) {
      ranks_.emplace_back(options_.node_rank * options_.ranks + local, options_.command,
                          variables_of(options_, local, host, port));
    }
    while (is_any_running()) {
      forward_output(milliseconds(100));
      reap();
      end_the_rest();
    }
    // A grandchild may still hold a pipe; what the ranks wrote is there by now.
    forward_output(milliseconds(0));
    for (auto& rank : ranks_) {
      for (auto& output : rank.outputs()) output.finish();
    }
    return report();
  }

 private:
  bool is_any_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.is_running(); });
  }

  void forward_output(milliseconds patience) {
    std::vector<pollfd> polled;
    for (auto& rank : ranks_) {
      for (auto& output : rank.outputs()) {
        if (output.descriptor() >= 0) polled.push_back({output.descriptor(), POLLIN, 0});
      }
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(patience.count()));
    for (auto& rank : ranks_) {
      for (auto& output : rank.outputs()) {
        if (output.descriptor() >= 0) output.read_available();
      }
    }
  }

  void reap() {
    int status = 0;
    const auto next = [&] { return ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED); };
    for (pid_t pid = next(); pid > 0; pid = next()) {
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (ranks_[i].pid() != pid) continue;
        ranks_[i].take_status(status);
        if (ranks_[i].is_running()) continue;
        ended_.push_back(i);
        if (status != 0 && !first_failure_) first_failure_ = i;
      }
    }
  }

  // After a failure: last words, SIGTERM, SIGKILL. After a signal to this program: that signal, SIGKILL.
  void end_the_rest() {
    const auto now = Clock::now();
    const auto later = [](double wait) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait));
    };
    if (caught_signal != 0 && caught_signal != forwarded_) {
      forwarded_ = caught_signal;
      for (const auto& rank : ranks_) rank.signal(forwarded_);
      kill_at_ = now + later(options_.grace);
    }
    if (first_failure_ && !terminate_at_) terminate_at_ = now + later(options_.last_words);
    if (terminate_at_ && now >= *terminate_at_ && !kill_at_) {
      for (const auto& rank : ranks_) {
        if (rank.is_running()) ended_here_.push_back(rank.rank());
        rank.signal(SIGTERM);
      }
      kill_at_ = now + later(options_.grace);
    }
    if (kill_at_ && now >= *kill_at_) {
      for (const auto& rank : ranks_) rank.signal(SIGKILL);
    }
  }

  // The rank that has been stopped for longest, if it was before this moment.
  const RankProcess* stopped_before(Clock::time_point moment) const {
    const RankProcess* found = nullptr;
    for (const auto& rank : ranks_) {
      const auto since = rank.stopped_since();
      if (since && *since < moment && (!found || *since < *found->stopped_since())) found = &rank;
    }
    return found;
  }

  int report() const {
    const auto say = [](const std::string& text) { std::cerr << "dtensor-run: " << text << std::endl; };
    if (forwarded_ != 0) {
      say(std::string("ended by signal ") + std::to_string(forwarded_) + " (" + ::strsignal(forwarded_) +
          ")");
      return 128 + forwarded_;
    }
    if (!first_failure_) return 0;
    const RankProcess& first = ranks_[*first_failure_];
    const RankProcess* stopped = stopped_before(first.end());
    if (stopped) {
      say("rank " + std::to_string(stopped->rank()) + " failed first, " + seconds(*stopped->stopped_since() - start_) +
          " after the start: " + stopped->how_it_stopped() + " and never continued");
      say("rank " + std::to_string(first.rank()) + ": " + first.how_it_ended() + ", " +
          seconds(first.end() - *stopped->stopped_since()) + " later");
    } else {
      say("rank " + std::to_string(first.rank()) + " failed first, " + seconds(first.end() - start_) +
          " after the start: " + first.how_it_ended());
    }
    for (const auto i : ended_) {
      const RankProcess& rank = ranks_[i];
      const std::string name = "rank " + std::to_string(rank.rank());
      if (i == *first_failure_) continue;
      if (!rank.has_failed()) {
        const bool before = rank.end() <= first.end();
        say(name + (i == ended_.front() ? " ended first, with exit code 0, " : " ended with exit code 0, ") +
            seconds(before ? first.end() - rank.end() : rank.end() - first.end()) +
            (before ? " before" : " later") + "; ranks that wait for one that has ended fail");
      } else {
        const bool here = std::find(ended_here_.begin(), ended_here_.end(), rank.rank()) != ended_here_.end();
        say(name + ": " + (here ? "ended by dtensor-run, " : "") + rank.how_it_ended() + ", " +
            seconds(rank.end() - first.end()) + " later");
      }
    }
    return first.exit_code();
  }

  Options options_;
  std::vector<RankProcess> ranks_;
  Clock::time_point start_ = Clock::now();
  std::vector<std::size_t> ended_;  // in order
  std::optional<std::size_t> first_failure_;
  std::optional<Clock::time_point> terminate_at_, kill_at_;
  std::vector<int> ended_here_;
  int forwarded_ = 0;
};

}  // namespace

int main(int argument_count, char** arguments) {
  Options options;
  CLI::App app("Starts one process per rank on this node.", "dtensor-run");
  app.prefix_command();  // what follows the options is the program with its arguments
  app.add_option("-n,--ranks-per-node", options.ranks, "Ranks on this node")->check(CLI::Range(1, 4096));
  app.add_option("--nodes", options.nodes, "Nodes; run dtensor-run on each")->check(CLI::Range(1, 65536));
  app.add_option("--node-rank", options.node_rank, "Which node this is, from 0");
  app.add_option("--master", options.master,
                 "HOST:PORT on node 0 where the ranks meet; needed for several nodes");
  app.add_option("--last-words", options.last_words,
                 "Seconds for the others to end by themselves after a failure");
  app.add_option("--grace", options.grace, "Seconds between SIGTERM and SIGKILL");
  CLI11_PARSE(app, argument_count, arguments);
  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--")
    options.command.erase(options.command.begin());
  const auto refuse = [](const std::string& text) {
    std::cerr << "dtensor-run: " << text << "\n";
    return 2;
  };
  if (options.command.empty()) return refuse("no program; usage: dtensor-run -n 4 -- program args...");
  if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    return refuse("--node-rank " + std::to_string(options.node_rank) + " is not below --nodes " +
                  std::to_string(options.nodes));
  }
  if (options.nodes > 1 && options.master.empty()) return refuse("several nodes need --master HOST:PORT");
  std::string host = "127.0.0.1";
  try {
    int port = 0;
    if (options.master.empty()) {
      port = dtensor::tools::find_free_port();
    } else {
      const auto colon = options.master.rfind(':');
      char* end = nullptr;
      if (colon != std::string::npos)
        port = static_cast<int>(std::strtol(&options.master[colon + 1], &end, 10));
      if (colon == std::string::npos || colon == 0 || *end != '\0' || port < 1 || port > 65535) {
        return refuse("--master '" + options.master + "' is not HOST:PORT");
      }
      host = options.master.substr(0, colon);
    }
    install_signal_handlers();
    return Launcher(options).run(host, port);
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}
