#include "ops/halo.h"

#include <ATen/Functions.h>

namespace dtensor {
namespace {

using shard_math::Interval;

at::Tensor part(const at::Tensor& tensor, std::int64_t dim, const Interval& whole, const Interval& wanted) {
  return wanted.size == 0 ? tensor.narrow(dim, 0, 0) : tensor.narrow(dim, wanted.offset - whole.offset, wanted.size);
}

}  // namespace

HaloExchange::HaloExchange(detail::MeshState& mesh, int mesh_dim, std::int64_t dim, std::int64_t size,
                           std::vector<Interval> wanted)
    : mesh_(mesh),
      mesh_dim_(mesh_dim),
      dim_(dim),
      rank_(static_cast<std::size_t>(mesh.coordinate[static_cast<std::size_t>(mesh_dim)])),
      wanted_(std::move(wanted)) {
  const auto ranks = mesh.layout->size(mesh_dim);
  for (std::int64_t rank = 0; rank < ranks; ++rank) pieces_.push_back(shard_math::piece(size, ranks, rank));
}

// Sends each rank what `had` here covers of its `needed`, and receives the other way round: per rank, in order.
std::vector<at::Tensor> HaloExchange::exchange(const at::Tensor& tensor, const std::vector<Interval>& had,
                                               const std::vector<Interval>& needed) const {
  std::vector<at::Tensor> sent, received;
  auto sizes = tensor.sizes().vec();
  for (std::size_t rank = 0; rank < pieces_.size(); ++rank) {
    sent.push_back(part(tensor, dim_, had[rank_], shard_math::intersection(had[rank_], needed[rank])).contiguous());
    sizes[static_cast<std::size_t>(dim_)] = shard_math::intersection(had[rank], needed[rank_]).size;
    received.push_back(at::empty(sizes, tensor.options()));
  }
  mesh_.group(mesh_dim_).all_to_all(received, sent).wait();
  return received;
}

at::Tensor HaloExchange::fetch(const at::Tensor& piece) const { return at::cat(exchange(piece, pieces_, wanted_), dim_); }

at::Tensor HaloExchange::give_back(const at::Tensor& range) const {
  const auto parts = exchange(range, wanted_, pieces_);
  auto sizes = range.sizes().vec();
  sizes[static_cast<std::size_t>(dim_)] = pieces_[rank_].size;
  auto sum = at::zeros(sizes, range.options());
  for (std::size_t rank = 0; rank < parts.size(); ++rank)  // in one order on all ranks
    part(sum, dim_, pieces_[rank_], shard_math::intersection(wanted_[rank], pieces_[rank_])).add_(parts[rank]);
  return sum;
}

}  // namespace dtensor
