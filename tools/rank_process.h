// One rank's process as its launcher sees it: started with torchrun's variables, its output read line by line.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::tools {

using Clock = std::chrono::steady_clock;

// A pipe from a rank, whose whole lines are written with the rank in front.
class LineReader {
 public:
  LineReader(int from, int to, std::string prefix) : from_(from), to_(to), prefix_(std::move(prefix)) {}

  int descriptor() const { return from_; }  // -1: the other end is closed
  // Reads what is there without waiting.
  void read_available();
  // Writes a last line without its end.
  void finish();

 private:
  void write_lines(bool all);

  int from_, to_;
  std::string prefix_, pending_;
};

class RankProcess {
 public:
  // Starts `command` with `variables` added to the environment, in a process group of its own.
  // Errors: std::system_error.
  RankProcess(int rank, const std::vector<std::string>& command,
              const std::map<std::string, std::string>& variables);

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  std::vector<LineReader>& outputs() { return outputs_; }

  bool is_running() const { return !status_; }
  // What waitpid reports of it: that it ended, was stopped by a signal, or goes on.
  void take_status(int status);
  bool has_failed() const { return status_ && *status_ != 0; }
  Clock::time_point end() const { return end_; }
  std::string how_it_ended() const;  // "exit code 1", "killed by signal 9 (Killed)"
  // Since when it has been stopped, as by SIGSTOP, without going on before its end.
  std::optional<Clock::time_point> stopped_since() const { return stopped_since_; }
  std::string how_it_stopped() const;  // "stopped by signal 19 (Stopped (signal))"
  int exit_code() const;             // as a shell says it: 128 + signal
  // To all processes of its group, while it runs.
  void signal(int number) const;

 private:
  int rank_;
  pid_t pid_ = -1;
  std::vector<LineReader> outputs_;
  std::optional<int> status_;  // as waitpid gives it
  Clock::time_point end_{};
  std::optional<Clock::time_point> stopped_since_;
  int stop_signal_ = 0;
};

// A TCP port that is free at this moment. Errors: std::system_error.
int find_free_port();

}  // namespace dtensor::tools
