#include "dtensor/wished_move.h"

#include "dtensor/redistribute.h"
#include "dtensor/shared_move.h"

#include <ATen/core/grad_mode.h>

namespace dtensor::detail {
namespace {

const Layout* wished_layout(const at::Tensor& tensor, const std::vector<WishedPlacement>& wishes,
                            std::vector<std::int64_t>& mesh_dims) {
  const Layout* layout = meta(tensor).layout;
  auto placements = layout->placements();
  for (const auto& wish : wishes) {
    placements[static_cast<std::size_t>(wish.mesh_dim)] = wish.placement.normalized(tensor.dim());
    mesh_dims.push_back(wish.mesh_dim);
  }
  return Layout::of(layout->mesh_pointer(), placements, layout->cut_order());
}

}  // namespace

const Wish* find_wish(const at::Tensor& tensor, WishFamily family) {
  if (!is_dtensor(tensor)) return nullptr;
  const Wishes& wishes = meta(tensor).wishes;
  if (!wishes) return nullptr;
  for (const auto& wish : *wishes)
    if (wish.family == family) return &wish;
  return nullptr;
}

at::Tensor with_input_wish(const at::Tensor& operand, const Wish* wish) {
  if (!wish || wish->input.empty() || !is_dtensor(operand)) return operand;
  std::vector<std::int64_t> mesh_dims;
  const Layout* to = wished_layout(operand, wish->input, mesh_dims);
  const bool identity = to == meta(operand).layout;
  // Placed as wished: still a node where the consumer's gradient will be pending, so that it is reduced once for all.
  if (identity && !(wish->pending_gradient && at::GradMode::is_enabled() && operand.requires_grad())) return operand;
  const CollectiveReason reason("wish");
  return shared_move(operand, to, mesh_dims);
}

at::Tensor with_output_wish(const at::Tensor& result, const Wish* wish) {
  if (!wish || wish->output.empty() || !is_dtensor(result)) return result;
  std::vector<std::int64_t> mesh_dims;
  const Layout* to = wished_layout(result, wish->output, mesh_dims);
  if (to == meta(result).layout) return result;
  const CollectiveReason reason("wish");
  return move_dims(result, to, mesh_dims);
}

}  // namespace dtensor::detail
