#include "comm/segment.h"

#include "comm/futex.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace dtensor::detail {

namespace {

// Slots of different ranks and places must not begin at the same distance from a page's start: they would fall into
// the same few sets of the caches. So a slot is a power of two plus its header.
constexpr std::size_t ring_depth = 4, ring_capacity = std::size_t{256} << 10;
constexpr std::size_t letter_depth = 4, letter_capacity = std::size_t{64} << 10;
constexpr std::size_t page = 4096;

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
std::size_t ring_stride() { return ring_capacity + sizeof(Slot); }
std::size_t letter_stride() { return letter_capacity + sizeof(Slot); }

[[noreturn]] void complain(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

}  // namespace

void Bell::ring() {
  if (sleepers.load() == 0) return;
  rings.fetch_add(1);
  futex_wake_all(rings);
}

Segment::Segment(int file, int ranks) : ranks_(ranks), file_(file) {
  const auto count = static_cast<std::size_t>(ranks);
  const auto row = rounded(count * sizeof(ReadMark), 64);
  bells_ = sizeof(Bell);
  ring_marks_ = bells_ + count * sizeof(Bell);
  letter_marks_ = ring_marks_ + count * row;
  rings_ = rounded(letter_marks_ + count * row, page);
  letters_ = rounded(rings_ + count * ring_depth * ring_stride(), page);
  size_ = rounded(letters_ + count * count * letter_depth * letter_stride(), page);
}

std::unique_ptr<Segment> Segment::create(int ranks) {
  const int file = ::memfd_create("dtensor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) complain("memfd_create");
  std::unique_ptr<Segment> segment(new Segment(file, ranks));
  if (::ftruncate(file, static_cast<off_t>(segment->size_)) != 0) complain("the size of shared memory");
  ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);  // nobody can pull the memory from under the others
  segment->address_ = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file);
  void* memory = ::mmap(nullptr, segment->size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) complain("mmap of shared memory");
  segment->memory_ = static_cast<std::byte*>(memory);
  return segment;
}

std::unique_ptr<Segment> Segment::open(const std::string& address, int ranks) {
  const int file = ::open(address.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) complain("shared memory at " + address);
  std::unique_ptr<Segment> segment(new Segment(file, ranks));
  struct stat status {};
  if (::fstat(file, &status) != 0) complain("shared memory at " + address);
  if (static_cast<std::size_t>(status.st_size) != segment->size_) {
    throw std::runtime_error("shared memory at " + address + " has an unexpected size: another version of dtensor?");
  }
  void* memory = ::mmap(nullptr, segment->size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) complain("mmap of shared memory");
  segment->memory_ = static_cast<std::byte*>(memory);
  segment->close_address();
  return segment;
}

Segment::~Segment() {
  if (memory_) ::munmap(memory_, size_);
  close_address();
}

void Segment::close_address() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

std::size_t Segment::place(int row, int column) const {
  const auto width = rounded(static_cast<std::size_t>(ranks_) * sizeof(ReadMark), 64);
  return static_cast<std::size_t>(row) * width + static_cast<std::size_t>(column) * sizeof(ReadMark);
}

Bell& Segment::bell(int rank) const {
  return *reinterpret_cast<Bell*>(memory_ + bells_ + static_cast<std::size_t>(rank) * sizeof(Bell));
}

// A reader's marks lie together: it writes them all after a collective.
ReadMark& Segment::ring_mark(int owner, int reader) const {
  return *reinterpret_cast<ReadMark*>(memory_ + ring_marks_ + place(reader, owner));
}

ReadMark& Segment::letter_mark(int from, int to) const {
  return *reinterpret_cast<ReadMark*>(memory_ + letter_marks_ + place(to, from));
}

Ring Segment::ring(int owner) const {
  const auto stride = ring_stride();
  return {memory_ + rings_ + static_cast<std::size_t>(owner) * ring_depth * stride, ring_depth, stride};
}

Ring Segment::letter_box(int from, int to) const {
  const auto number = static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(to);
  return {memory_ + letters_ + number * letter_depth * letter_stride(), letter_depth, letter_stride()};
}

}  // namespace dtensor::detail
