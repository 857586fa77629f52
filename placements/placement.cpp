#include "placements/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string_view>

#include "placements/error.h"

namespace dtensor {
namespace {

constexpr ReduceOp all_reduce_ops[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::max,
                                       ReduceOp::min};

// Part sizes live here for ever, each list once: a Placement stays small and == compares a pointer.
const std::vector<std::int64_t>* intern_parts(const std::vector<std::int64_t>& parts) {
  static auto* const mutex = new std::shared_mutex;
  static auto* const known = new std::set<std::vector<std::int64_t>>;  // nodes never move
  {
    std::shared_lock lock(*mutex);
    if (const auto found = known->find(parts); found != known->end()) return &*found;
  }
  std::unique_lock lock(*mutex);
  return &*known->insert(parts).first;
}

std::int32_t narrow_dim(std::int64_t dim) {
  if (dim < std::numeric_limits<std::int32_t>::min() || dim > std::numeric_limits<std::int32_t>::max()) {
    throw PlacementError(fmt::format("a placement cannot cut tensor dimension {}", dim));
  }
  return static_cast<std::int32_t>(dim);
}

// Reads the little language of `Placement::to_string`, white space between tokens allowed.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool take(char expected) {
    skip_space();
    if (rest_.empty() || rest_.front() != expected) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view word() {
    skip_space();
    std::size_t length = 0;
    while (length < rest_.size() && std::isalpha(static_cast<unsigned char>(rest_[length])) != 0) ++length;
    const auto result = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return result;
  }
  std::optional<std::int64_t> number() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  bool at_end() {
    skip_space();
    return rest_.empty();
  }

 private:
  void skip_space() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front())) != 0) {
      rest_.remove_prefix(1);
    }
  }
  std::string_view rest_;
};

std::optional<std::vector<std::int64_t>> read_parts(Reader& reader) {
  std::vector<std::int64_t> parts;
  if (!reader.take('[')) return std::nullopt;
  do {
    const auto part = reader.number();
    if (!part) return std::nullopt;
    parts.push_back(*part);
  } while (reader.take(','));
  if (!reader.take(']')) return std::nullopt;
  return parts;
}

std::optional<Placement> read_placement(Reader& reader) {
  const auto kind = reader.word();
  if (kind == "Replicate") {
    if (reader.take('(') && !reader.take(')')) return std::nullopt;
    return Placement::replicate();
  }
  if (kind == "Partial") {
    if (!reader.take('(')) return Placement::partial();
    if (reader.take(')')) return Placement::partial();
    const auto name = reader.word();
    for (const auto op : all_reduce_ops) {
      if (name == to_string(op) && reader.take(')')) return Placement::partial(op);
    }
    return std::nullopt;
  }
  if (kind != "Shard" && kind != "Interleaved") return std::nullopt;
  if (!reader.take('(')) return std::nullopt;
  const auto dim = reader.number();
  if (!dim) return std::nullopt;
  if (kind == "Shard") return reader.take(')') ? std::optional(Placement::shard(*dim)) : std::nullopt;
  if (!reader.take(',')) return std::nullopt;
  const auto parts = read_parts(reader);
  if (!parts || !reader.take(')')) return std::nullopt;
  return Placement::interleaved(*dim, *parts);
}

}  // namespace

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::product:
      return "product";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown ReduceOp");
}

Placement Placement::shard(std::int64_t dim) {
  Placement result;
  result.kind_ = Kind::shard;
  result.dim_ = narrow_dim(dim);
  return result;
}

Placement Placement::partial(ReduceOp op) {
  Placement result;
  result.kind_ = Kind::partial;
  result.op_ = op;
  return result;
}

Placement Placement::interleaved(std::int64_t dim, const std::vector<std::int64_t>& parts) {
  if (parts.empty()) throw PlacementError("Interleaved needs the sizes of its parts, but none were given");
  for (const auto part : parts) {
    if (part < 0) {
      throw PlacementError(
          fmt::format("Interleaved has a part of negative size: [{}]", fmt::join(parts, ", ")));
    }
  }
  Placement result;
  result.kind_ = Kind::interleaved;
  result.dim_ = narrow_dim(dim);
  result.parts_ = intern_parts(parts);
  return result;
}

const std::vector<std::int64_t>& Placement::parts() const {
  TORCH_INTERNAL_ASSERT(parts_ != nullptr, "parts() of a placement that is not Interleaved");
  return *parts_;
}

Placement Placement::normalized(std::int64_t ndim) const {
  if (!is_sharded()) return *this;
  if (dim_ >= -ndim && dim_ < ndim) return dim_ < 0 ? with_dim(dim_ + ndim) : *this;
  throw PlacementError(ndim == 0
                           ? fmt::format("{} cannot cut a tensor of 0 dimensions; use Replicate", to_string())
                           : fmt::format("{} names no dimension of a tensor of {} dimensions; use {} to {}",
                                         to_string(), ndim, -ndim, ndim - 1));
}

Placement Placement::with_dim(std::int64_t dim) const {
  TORCH_INTERNAL_ASSERT(is_sharded(), "with_dim() of a placement that cuts nothing");
  Placement result = *this;
  result.dim_ = narrow_dim(dim);
  return result;
}

std::string Placement::to_string() const {
  switch (kind_) {
    case Kind::replicate:
      return "Replicate";
    case Kind::shard:
      return fmt::format("Shard({})", dim_);
    case Kind::partial:
      return fmt::format("Partial({})", dtensor::to_string(op_));
    case Kind::interleaved:
      return fmt::format("Interleaved({}, [{}])", dim_, fmt::join(*parts_, ", "));
  }
  TORCH_INTERNAL_ASSERT(false, "unknown placement kind");
}

Placement Placement::parse(const std::string& text) {
  Reader reader(text);
  const auto placement = read_placement(reader);
  if (placement && reader.at_end()) return *placement;
  throw PlacementError(fmt::format(
      "'{}' is no placement; write Replicate, Shard(DIM), Partial, Partial(OP) with OP one of sum, "
      "avg, product, max, min, or Interleaved(DIM, [SIZE, SIZE, ...])",
      text));
}

std::string to_string(const Placements& placements) {
  std::string text = "[";
  for (const auto& placement : placements) {
    if (text.size() > 1) text += ", ";
    text += placement.to_string();
  }
  return text + "]";
}

}  // namespace dtensor
