#include "dtensor/shared_move.h"

#include "dtensor/redistribute.h"
#include "placements/error.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <thread>

namespace dtensor::detail {
namespace {

// LibTorch 2.15 counts nodes intrusively, 2.11 by shared_ptr; a weak reference to whichever it is.
template <typename Pointer>
struct WeakNode;
template <typename Node>
struct WeakNode<c10::intrusive_ptr<Node>> {
  explicit WeakNode(const c10::intrusive_ptr<Node>& node) : weak(node) {}
  c10::intrusive_ptr<Node> lock() const { return weak.lock(); }
  c10::weak_intrusive_ptr<Node> weak;
};
template <typename Node>
struct WeakNode<std::shared_ptr<Node>> {
  explicit WeakNode(const std::shared_ptr<Node>& node) : weak(node) {}
  std::shared_ptr<Node> lock() const { return weak.lock(); }
  std::weak_ptr<Node> weak;
};
using NodePointer = decltype(torch::autograd::Edge().function);

}  // namespace

struct SharedMove {
  const Layout* to;
  std::vector<std::int64_t> mesh_dims;
  at::Tensor data;             // without graph
  std::int64_t data_version;
  std::optional<WeakNode<NodePointer>> node;
  std::thread::id thread;
};
struct MoveMemo {
  std::int64_t source_version = 0;
  std::vector<SharedMove> moves;
};

namespace {

std::int64_t version(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor._version()); }

SharedMove* find(MoveMemo& memo, const Layout* to, const std::vector<std::int64_t>& mesh_dims) {
  for (auto& move : memo.moves)
    if (move.to == to && move.mesh_dims == mesh_dims && version(move.data) == move.data_version &&
        move.thread == std::this_thread::get_id())
      return &move;
  return nullptr;
}

}  // namespace

at::Tensor shared_move(const at::Tensor& tensor, const Layout* to, const std::vector<std::int64_t>& mesh_dims) {
  check_readable(tensor, "move");
  Meta& data = meta(tensor);
  const bool with_graph = at::GradMode::is_enabled() && tensor.requires_grad();
  if (!data.memo || data.memo->source_version != version(tensor)) {
    data.memo = std::make_shared<MoveMemo>();
    data.memo->source_version = version(tensor);
  }
  if (SharedMove* hit = find(*data.memo, to, mesh_dims)) {
    if (!with_graph) return rewrap(hit->data);
    if (hit->node)
      if (auto node = hit->node->lock()) {
        auto result = rewrap(hit->data);
        torch::autograd::impl::set_gradient_edge(result, torch::autograd::Edge(node, 0));
        return result;
      }
  }
  auto result = move_dims(tensor, to, mesh_dims);
  if (result.is_same(tensor)) return result;
  SharedMove entry{to, mesh_dims, rewrap(result), 0, std::nullopt, std::this_thread::get_id()};
  entry.data_version = version(entry.data);
  if (with_graph) entry.node.emplace(result.grad_fn());
  auto& moves = data.memo->moves;
  std::erase_if(moves, [&](const SharedMove& old) { return old.to == to && old.mesh_dims == mesh_dims; });
  moves.push_back(std::move(entry));
  return result;
}

void check_readable(const at::Tensor& tensor, const char* function) {
  const Meta& data = meta(tensor);
  if (data.gathered && data.base_version != version(tensor))
    throw UnsupportedError(fmt::format(
        "{}: the tensor is a view that had to move data, and the tensor it came from was changed in place since. Take the "
        "view anew.",
        function));
}

}  // namespace dtensor::detail
