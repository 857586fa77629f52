#include "ops/indexed_dims.h"

namespace dtensor {

IndexedDims::IndexedDims(std::span<const Operand> indices) {
  for (std::size_t dim = 0; dim < indices.size(); ++dim) {
    const auto& index = indices[dim];
    index_sizes_.push_back(index.sizes.vec());
    if (!index.defined) continue;
    indexed.push_back(static_cast<std::int64_t>(dim));
    by_number = by_number && index.dtype != c10::kBool && index.dtype != c10::kByte;
    if (index.ndim() > ndim) {
      sizes.insert(sizes.begin(), static_cast<std::size_t>(index.ndim() - ndim), 1);
      ndim = index.ndim();
    }
    const auto first = static_cast<std::size_t>(ndim - index.ndim());
    for (std::size_t i = 0; i < index.sizes.size(); ++i)
      if (index.sizes[i] != 1) sizes[first + i] = index.sizes[i];
  }
  by_number = by_number && !indexed.empty();
  if (!indexed.empty() && indexed.back() - indexed.front() + 1 == static_cast<std::int64_t>(indexed.size()))
    position = indexed.front();
}

std::vector<int> IndexedDims::broadcast(RuleBuilder& builder, Factor::Kind kind) const {
  std::vector<int> places;
  for (std::int64_t i = 0; i < ndim; ++i) places.push_back(builder.factor(kind));
  for (auto dim : indexed) {
    const auto& own = index_sizes_[static_cast<std::size_t>(dim)];
    std::vector<int> dims(places.end() - static_cast<std::ptrdiff_t>(own.size()), places.end());
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i] == 1 && sizes[sizes.size() - own.size() + i] != 1) dims[i] = no_factor;
    builder.operand(static_cast<std::size_t>(dim) + 1, dims);
  }
  return places;
}

}  // namespace dtensor
