// Placement: how one mesh dimension holds a tensor. A small value, compared with ==, without any tensor or
// rank. Names follow PyTorch's torch.distributed.tensor.placement_types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

// The reduction that a pending value still needs.
enum class ReduceOp : std::uint8_t { sum, avg, product, max, min };

// "sum", "avg", ...
const char* to_string(ReduceOp op);

// How the ranks along one mesh dimension hold a tensor.
//
// - Replicate: every rank holds the whole.
// - Shard(dim): dimension `dim` is cut in pieces of ceil(n/k); the last pieces may be smaller or empty.
// - Partial(op): every rank holds a value of the whole shape; the true value is their reduction by `op`. Pending along
//   several mesh dimensions, the last one is reduced first (which matters for unlike operators only).
// - Interleaved(dim, parts): dimension `dim` is a pack of parts of sizes parts[0], parts[1], ...; each part is cut
//   alone, and a rank holds its piece of every part, in order (a packed QKV or gate-up weight).
class Placement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, partial, interleaved };

  constexpr Placement() = default;  // Replicate

  static Placement replicate() { return {}; }
  static Placement shard(std::int64_t dim);
  static Placement partial(ReduceOp op = ReduceOp::sum);
  // Errors: PlacementError when `parts` is empty or holds a negative size.
  static Placement interleaved(std::int64_t dim, const std::vector<std::int64_t>& parts);

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::replicate; }
  bool is_partial() const { return kind_ == Kind::partial; }
  bool is_shard() const { return kind_ == Kind::shard; }
  bool is_interleaved() const { return kind_ == Kind::interleaved; }
  // Whether a tensor dimension is cut: Shard or Interleaved.
  bool is_sharded() const { return is_shard() || is_interleaved(); }
  bool is_sharded(std::int64_t dim) const { return is_sharded() && dim_ == dim; }

  // The cut tensor dimension; -1 when none is. May be negative only before normalisation (see `normalized`).
  std::int64_t dim() const { return dim_; }
  ReduceOp reduce_op() const { return op_; }       // meaningful for Partial
  const std::vector<std::int64_t>& parts() const;  // meaningful for Interleaved

  // The same placement with a dimension counted from the front, for a tensor of `ndim` dimensions.
  // Errors: PlacementError when the dimension is out of range.
  Placement normalized(std::int64_t ndim) const;
  // The same kind of cut on another tensor dimension. Requires is_sharded().
  Placement with_dim(std::int64_t dim) const;

  std::string to_string() const;  // "Replicate", "Shard(0)", "Partial(sum)", "Interleaved(0, [4, 2, 2])"
  // Reads what `to_string` writes; also "Partial". Errors: PlacementError with the text and what is accepted.
  static Placement parse(const std::string& text);

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Kind kind_ = Kind::replicate;
  ReduceOp op_ = ReduceOp::sum;
  std::int32_t dim_ = -1;
  const std::vector<std::int64_t>* parts_ = nullptr;  // interned, so == compares the pointer
};

using Placements = std::vector<Placement>;

inline Placement Replicate() { return Placement::replicate(); }
inline Placement Shard(std::int64_t dim) { return Placement::shard(dim); }
inline Placement Partial(ReduceOp op = ReduceOp::sum) { return Placement::partial(op); }
inline Placement Interleaved(std::int64_t dim, const std::vector<std::int64_t>& parts) {
  return Placement::interleaved(dim, parts);
}

std::string to_string(const Placements& placements);  // "[Shard(0), Replicate]"

}  // namespace dtensor
