// The dimensions that a list of index tensors speaks of, as in x[:, i, j]: shared by reading and writing by index.
#pragma once

#include "ops/rule_builder.h"

#include <cstdint>
#include <span>
#include <vector>

namespace dtensor {

// Of a call's index operands, one for each leading dimension of what they index (undefined for a whole dimension). The
// indices broadcast against each other; their dimensions stand together in the result: in place of the indexed ones
// where those are neighbours, else first.
struct IndexedDims {
  explicit IndexedDims(std::span<const Operand> indices);

  std::vector<std::int64_t> indexed;  // dimensions with an index, rising
  std::vector<std::int64_t> sizes;    // of the indices, broadcast
  std::int64_t ndim = 0;              // how many these are
  std::int64_t position = 0;          // of the first of them in the result
  bool by_number = true;              // no mask among the indices; there is an index

  // A factor for each broadcast dimension; sets the index operands' dims (operands 1, 2, ...).
  std::vector<int> broadcast(RuleBuilder& builder, Factor::Kind kind) const;
  // `own`, one entry per dimension of what is indexed, with `places` for the indexed ones.
  template <typename Entry>
  std::vector<Entry> replaced(const std::vector<Entry>& own, const std::vector<Entry>& places) const {
    std::vector<Entry> all;
    std::size_t next = 0;
    for (std::size_t dim = 0; dim < own.size(); ++dim) {
      if (next < indexed.size() && indexed[next] == static_cast<std::int64_t>(dim))
        ++next;
      else
        all.push_back(own[dim]);
    }
    all.insert(all.begin() + position, places.begin(), places.end());
    return all;
  }

 private:
  std::vector<std::vector<std::int64_t>> index_sizes_;  // by index operand; of undefined ones empty
};

}  // namespace dtensor
