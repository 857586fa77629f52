#include "dtensor/shared_move.h"

#include "dtensor/autocast_scope.h"
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
  at::ScalarType dtype;
  std::vector<std::int64_t> mesh_dims;
  at::Tensor data;  // without graph
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

// The memo of a tensor's moves, emptied where the tensor has changed.
const std::shared_ptr<MoveMemo>& memo_of(const at::Tensor& tensor) {
  Meta& data = meta(tensor);
  if (!data.memo || data.memo->source_version != version(tensor)) {
    data.memo = std::make_shared<MoveMemo>();
    data.memo->source_version = version(tensor);
  }
  return data.memo;
}

SharedMove* find(MoveMemo& memo, const Layout* to, const std::vector<std::int64_t>& mesh_dims,
                 at::ScalarType dtype) {
  for (auto& move : memo.moves)
    if (move.to == to && move.dtype == dtype && move.mesh_dims == mesh_dims &&
        version(move.data) == move.data_version && move.thread == std::this_thread::get_id())
      return &move;
  return nullptr;
}

}  // namespace

at::Tensor shared_move(const at::Tensor& tensor, const Layout* to,
                       const std::vector<std::int64_t>& mesh_dims) {
  check_readable(tensor, "move");
  if (meta(tensor).untracked) return move_dims(tensor, to, mesh_dims);
  const bool with_graph = at::GradMode::is_enabled() && tensor.requires_grad();
  const auto dtype = tensor.scalar_type();
  // An unchanged copy made by autocast shares the moves of the other copies of its source.
  auto memo = version(tensor) == 0 ? meta(tensor).cast_of.lock() : nullptr;
  if (!memo) memo = memo_of(tensor);
  if (SharedMove* hit = find(*memo, to, mesh_dims, dtype)) {
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
  SharedMove entry{to, dtype, mesh_dims, rewrap(result), 0, std::nullopt, std::this_thread::get_id()};
  entry.data_version = version(entry.data);
  if (with_graph) entry.node.emplace(result.grad_fn());
  auto& moves = memo->moves;
  std::erase_if(moves, [&](const SharedMove& old) {
    return old.to == to && old.dtype == dtype && old.mesh_dims == mesh_dims;
  });
  moves.push_back(std::move(entry));
  return result;
}

void note_cast(const at::Tensor& source, const at::Tensor& copy) {
  if (AutocastScope::active() && !meta(source).untracked) meta(copy).cast_of = memo_of(source);
}

void check_readable(const at::Tensor& tensor, const char* function) {
  const Meta& data = meta(tensor);
  if (data.gathered && data.base_version != version(tensor))
    throw UnsupportedError(
        fmt::format("{}: the tensor is a view that had to move data, and the tensor it came from was changed "
                    "in place since. Take the "
                    "view anew.",
                    function));
}

}  // namespace dtensor::detail
