#include "rank_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace dtensor::tools {

namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void write_all(int to, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const auto count = ::write(to, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) return;  // nobody reads any more
    if (count > 0) written += static_cast<std::size_t>(count);
  }
}

}  // namespace

void LineReader::read_available() {
  char buffer[16384];
  while (from_ >= 0) {
    const auto count = ::read(from_, buffer, sizeof(buffer));
    if (count > 0) {
      pending_.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      ::close(from_);
      from_ = -1;
    } else if (errno == EAGAIN) {
      break;
    }
  }
  write_lines(from_ < 0);
}

void LineReader::finish() { write_lines(true); }

void LineReader::write_lines(bool all) {
  std::string text;
  std::size_t start = 0;
  for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', start)) {
    text += prefix_ + pending_.substr(start, end + 1 - start);
    start = end + 1;
  }
  pending_.erase(0, start);
  if (all && !pending_.empty()) {
    text += prefix_ + pending_ + "\n";
    pending_.clear();
  }
  write_all(to_, text);
}

RankProcess::RankProcess(int rank, const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& variables)
    : rank_(rank) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) fail("pipe");
  const pid_t parent = ::getpid();
  // A signal that comes before the child has the default handlers back waits until then.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a launcher that is killed leaves no ranks behind
    if (::getppid() != parent) ::_exit(125);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE}) ::signal(number, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    write_all(STDERR_FILENO, "dtensor-run: cannot run '" + command[0] + "': " + std::strerror(errno) + "\n");
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);  // also here: whoever is first
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::close(out[1]);
  ::close(err[1]);
  std::string prefix = "[";
  prefix += std::to_string(rank) + "] ";
  for (const auto& [from, to] : {std::pair(out[0], STDOUT_FILENO), std::pair(err[0], STDERR_FILENO)}) {
    ::fcntl(from, F_SETFL, O_NONBLOCK);
    outputs_.emplace_back(from, to, prefix);
  }
}

void RankProcess::take_status(int status) {
  if (WIFSTOPPED(status)) {
    stopped_since_ = Clock::now();
    stop_signal_ = WSTOPSIG(status);
  } else if (WIFCONTINUED(status)) {
    stopped_since_.reset();
  } else {
    status_ = status;
    end_ = Clock::now();
  }
}

std::string RankProcess::how_it_stopped() const {
  return "stopped by signal " + std::to_string(stop_signal_) + " (" + ::strsignal(stop_signal_) + ")";
}

std::string RankProcess::how_it_ended() const {
  if (WIFEXITED(*status_)) return "exit code " + std::to_string(WEXITSTATUS(*status_));
  const int number = WTERMSIG(*status_);
  return "killed by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
}

int RankProcess::exit_code() const {
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

void RankProcess::signal(int number) const {
  if (is_running()) ::kill(-pid_, number);
}

int find_free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound = ::bind(socket, generic, length) == 0 && ::getsockname(socket, generic, &length) == 0;
  const int error = errno;
  ::close(socket);
  errno = error;
  if (!bound) fail("a free port");
  return ntohs(address.sin_port);
}

}  // namespace dtensor::tools
