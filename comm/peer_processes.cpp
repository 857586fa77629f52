#include "comm/peer_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

namespace dtensor::detail {

namespace {

std::string first_line_of(const char* file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string link_at(const char* path) {
  char text[256];
  const auto length = ::readlink(path, text, sizeof(text));
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "";
}

constexpr int unwatched = -1, unwatchable = -2, gone = -3;

}  // namespace

ProcessPlace ProcessPlace::own() {
  const auto process = static_cast<std::int64_t>(::getpid());
  const auto kernel = first_line_of("/proc/sys/kernel/random/boot_id");
  const auto numbers = link_at("/proc/self/ns/pid");
  // Without these nobody can be said to be in the same place.
  if (kernel.empty() || numbers.empty()) {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return {process, std::string(host) + "/" + std::to_string(process)};
  }
  return {process, kernel + "/" + numbers + "/" + std::to_string(::geteuid())};
}

std::string ProcessPlace::to_text() const { return std::to_string(process) + " " + place; }

ProcessPlace ProcessPlace::from_text(const std::string& text) {
  std::istringstream words(text);
  ProcessPlace result;
  words >> result.process >> result.place;
  return result;
}

PeerProcesses::PeerProcesses(std::vector<ProcessPlace> places)
    : places_(std::move(places)), files_(places_.size(), unwatched) {}

PeerProcesses::~PeerProcesses() {
  for (const int file : files_) {
    if (file >= 0) ::close(file);
  }
}

bool PeerProcesses::together(const std::vector<std::int64_t>& ranks) const {
  for (const auto rank : ranks) {
    if (place(rank).empty() || place(rank) != place(ranks.front())) return false;
  }
  return true;
}

bool PeerProcesses::has_ended(std::int64_t rank) {
  const std::lock_guard lock(mutex_);
  int& file = files_[static_cast<std::size_t>(rank)];
  const auto process = static_cast<pid_t>(places_[static_cast<std::size_t>(rank)].process);
  if (file == unwatched) {
    file = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
    if (file < 0) file = errno == ESRCH ? gone : unwatchable;
  }
  if (file == gone) return true;
  if (file == unwatchable) return ::kill(process, 0) != 0 && errno == ESRCH;  // an old kernel
  pollfd poll{file, POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

}  // namespace dtensor::detail
