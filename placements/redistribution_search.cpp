// Note [How the planner works, and why it ends]
//
// A state is a layout. A step changes one mesh dimension and keeps these invariants:
//
// (1) A cut is removed only while it is the innermost of its tensor dimension, and a new one is added as the innermost:
//     no other step is a plain collective along one mesh dimension.
// (2) A cut takes its final placement only on top of exactly the final cuts that lie outside it in the goal. So final
//     cuts never lie on others that must still move.
// (3) Pending reductions happen from the last mesh dimension to the first, unless their operators commute; a Partial
//     takes its final placement only when no other Partial would then be locked in.
// (4) Each mesh dimension goes through stages in one direction only: 0 as at the start, 1 parked as a Shard elsewhere,
//     2 Replicate, 3 final. Stages may be skipped. Mesh dimensions that are right from the start (the outer cuts that
//     both layouts share, Replicate in both, Partial in both unless (3) needs it out of the way) are at stage 3.
//
// It ends: by (4) every step raises the sum of the stages, which is at most 3 per mesh dimension. So the graph of
// states has no cycle, and a plan has at most 3 steps per mesh dimension.
//
// It arrives: from every state that keeps (1)-(3) one can reduce from the last mesh dimension to the first and gather
// from the innermost cut outwards (stage 2), then cut from the outermost inwards and make Partial from the first mesh
// dimension to the last (stage 3).
//
// Among all ways the cheapest is taken (Dijkstra; latency plus bytes), then the one of fewest steps, then the one found
// first, which is the same on every rank. That alone gives the good habits: reduce_scatter instead of all_reduce and
// slice, all_to_all instead of gather and slice, free slices before what they make smaller, reductions before or after
// gathers as bytes ask.
//
// Parking (stage 1) is for cuts that lie under others: to re-cut [Shard(0), Shard(0)] in the other order, moving a cut
// to a free dimension and back is less than gathering everything, when tensors are large. It is tried only where the
// parking dimension divides evenly and at most 3 mesh dimensions move, which keeps the states to a few hundred;
// typical plans visit fewer than ten.

#include "placements/redistribution_search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr std::uint8_t at_start = 0, parked = 1, replicated = 2, final_stage = 3;

// One per mesh dimension.
using Stages = std::vector<std::uint8_t>;

struct State {
  const Layout* layout;
  Stages stages;
  friend auto operator<=>(const State&, const State&) = default;
  friend bool operator==(const State&, const State&) = default;
  std::uint8_t stage(int mesh_dim) const { return stages[static_cast<std::size_t>(mesh_dim)]; }
};

bool commute(ReduceOp a, ReduceOp b) {
  const auto is_linear = [](ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg; };
  return a == b || (is_linear(a) && is_linear(b));
}

bool is_pending(const Placement& placement, ReduceOp op) {
  return placement.is_partial() && placement.reduce_op() == op;
}

// Whether `inner`, pending to the right of `outer`, has to go before `outer` can change: `outer` is a
// reduction that must come after it, or `outer` would become a product, whose ones an inner sum would add up.
bool blocks(const Placement& inner, const Placement& outer_now, const Placement& outer_next) {
  if (!inner.is_partial()) return false;
  if (outer_now.is_partial() && !commute(outer_now.reduce_op(), inner.reduce_op())) return true;
  return is_pending(outer_next, ReduceOp::product) && is_pending(inner, ReduceOp::sum);
}

class Search {
 public:
  Search(const Layout* start, const Layout* goal, shard_math::Sizes sizes, std::int64_t element_size)
      : start_(start), goal_(goal), sizes_(sizes), element_size_(element_size) {}

  std::vector<RedistributionStep> run() {
    const Stages stages = first_stages();
    for (int mesh_dim = 0; mesh_dim < start_->mesh_ndim(); ++mesh_dim) {
      if (stages[static_cast<std::size_t>(mesh_dim)] == at_start) moving_.push_back(mesh_dim);
    }
    visit({State{start_, stages}, 0, 0, -1, {}});
    while (!queue_.empty()) {
      const auto [cost, step_count, index] = queue_.top();
      queue_.pop();
      const Node& node = nodes_[index];
      if (node.is_settled) continue;
      nodes_[index].is_settled = true;
      if (node.state.layout == goal_ && is_final(node.state)) return path_to(index);
      expand(index);
    }
    TORCH_INTERNAL_ASSERT(false, "no plan from ", start_->to_string(), " to ", goal_->to_string());
  }

 private:
  struct Node {
    State state;
    double cost;
    int step_count;
    std::ptrdiff_t parent;  // index of the node that `step` leaves; -1 at the start
    RedistributionStep step;
    bool is_settled = false;
  };
  // Cost, steps, node: the smallest comes first, so ties fall alike on every rank.
  using Entry = std::tuple<double, int, std::size_t>;

  // Which mesh dimensions are right already (final_stage), and which must move (at_start).
  Stages first_stages() const {
    Stages stages(start_->placements().size(), at_start);
    for (std::int64_t dim = 0; dim <= start_->max_dim(); ++dim) {
      const auto now = start_->mesh_dims_cutting(dim), then = goal_->mesh_dims_cutting(dim);
      for (std::size_t i = 0; i < std::min(now.size(), then.size()); ++i) {
        if (now[i] != then[i] || start_->placement(now[i]) != goal_->placement(now[i])) break;
        stages[static_cast<std::size_t>(now[i])] = final_stage;
      }
    }
    // From left to right: one that stands in the way must move, and then others may stand in its way.
    for (int mesh_dim = 0; mesh_dim < start_->mesh_ndim(); ++mesh_dim) {
      const auto& now = start_->placement(mesh_dim);
      if (now != goal_->placement(mesh_dim) || now.is_sharded()) continue;
      bool in_the_way = false;
      for (int left = 0; left < mesh_dim; ++left) {
        if (stages[static_cast<std::size_t>(left)] == final_stage || start_->mesh().size(left) == 1) continue;
        in_the_way = in_the_way || blocks(now, start_->placement(left), goal_->placement(left));
      }
      if (!in_the_way || start_->mesh().size(mesh_dim) == 1) {
        stages[static_cast<std::size_t>(mesh_dim)] = final_stage;
      }
    }
    return stages;
  }

  bool is_final(const State& state) const {
    return std::all_of(state.stages.begin(), state.stages.end(),
                       [](auto stage) { return stage == final_stage; });
  }

  // Invariants (1) and (3): the placement of `mesh_dim` may be given up.
  bool may_leave(const State& state, int mesh_dim, const Placement& next) const {
    const auto& now = state.layout->placement(mesh_dim);
    if (now.is_sharded()) return state.layout->mesh_dims_cutting(now.dim()).back() == mesh_dim;
    for (int right = mesh_dim + 1; right < state.layout->mesh_ndim(); ++right) {
      if (state.layout->mesh().size(right) == 1) continue;
      if (blocks(state.layout->placement(right), now, next)) return false;
    }
    return true;
  }

  // Invariants (2) and (3): `mesh_dim` may take its final placement.
  bool may_settle(const State& state, int mesh_dim) const {
    const auto& next = goal_->placement(mesh_dim);
    if (next.is_sharded()) {
      auto cutting = state.layout->mesh_dims_cutting(next.dim());
      std::erase(cutting, mesh_dim);
      const auto wanted = goal_->mesh_dims_cutting(next.dim());
      const bool fits = cutting.size() < wanted.size() && wanted[cutting.size()] == mesh_dim &&
                        std::equal(cutting.begin(), cutting.end(), wanted.begin());
      return fits && std::all_of(cutting.begin(), cutting.end(),
                                 [&](int outer) { return state.stage(outer) == final_stage; });
    }
    for (int left = 0; left < mesh_dim; ++left) {
      if (state.stage(left) == final_stage) continue;
      if (blocks(next, state.layout->placement(left), goal_->placement(left))) return false;
    }
    return true;
  }

  void expand(std::size_t index) {
    for (const int mesh_dim : moving_) {
      const std::uint8_t stage = nodes_[index].state.stage(mesh_dim);
      const auto& last = goal_->placement(mesh_dim);
      if (stage == final_stage) continue;
      if (may_settle(nodes_[index].state, mesh_dim)) move(index, mesh_dim, last, final_stage);
      if (stage < replicated && !last.is_replicate()) move(index, mesh_dim, Replicate(), replicated);
      if (stage < parked && moving_.size() > 1 && moving_.size() <= 3) park(index, mesh_dim);
    }
  }

  void park(std::size_t index, int mesh_dim) {
    const std::int64_t ranks = start_->mesh().size(mesh_dim);
    for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
      const auto place = Shard(static_cast<std::int64_t>(dim));
      if (sizes_[dim] == 0 || sizes_[dim] % ranks != 0 || place == goal_->placement(mesh_dim)) continue;
      move(index, mesh_dim, place, parked);
    }
  }

  void move(std::size_t index, int mesh_dim, const Placement& next, std::uint8_t stage) {
    const State& state = nodes_[index].state;
    const auto kind = step_kind(state.layout->placement(mesh_dim), next);
    if (!kind || !may_leave(state, mesh_dim, next)) return;

    Placements placements = state.layout->placements();
    placements[static_cast<std::size_t>(mesh_dim)] = next;
    std::vector<int> order = state.layout->cut_order();
    std::erase(order, mesh_dim);
    order.push_back(mesh_dim);  // the innermost
    const Layout* after = Layout::of(start_->mesh_pointer(), placements, order);
    Stages stages = state.stages;
    stages[static_cast<std::size_t>(mesh_dim)] = stage;
    const std::int64_t bytes = step_bytes(*kind, mesh_dim, *state.layout, *after, sizes_, element_size_);
    const RedistributionStep step{*kind, mesh_dim, state.layout, after, bytes};
    visit({State{after, std::move(stages)}, nodes_[index].cost + step_cost(step),
           nodes_[index].step_count + 1, static_cast<std::ptrdiff_t>(index), step});
  }

  void visit(Node node) {
    const auto [entry, is_new] = best_.try_emplace(node.state, node.cost, node.step_count);
    if (!is_new) {
      if (entry->second <= std::pair(node.cost, node.step_count)) return;
      entry->second = {node.cost, node.step_count};
    }
    queue_.emplace(node.cost, node.step_count, nodes_.size());
    nodes_.push_back(std::move(node));
  }

  std::vector<RedistributionStep> path_to(std::size_t index) const {
    std::vector<RedistributionStep> steps;
    for (auto at = static_cast<std::ptrdiff_t>(index); nodes_[static_cast<std::size_t>(at)].parent >= 0;
         at = nodes_[static_cast<std::size_t>(at)].parent) {
      steps.push_back(nodes_[static_cast<std::size_t>(at)].step);
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  const Layout* start_;
  const Layout* goal_;
  shard_math::Sizes sizes_;
  std::int64_t element_size_;
  std::vector<int> moving_;
  std::vector<Node> nodes_;
  std::map<State, std::pair<double, int>> best_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

std::vector<RedistributionStep> search_steps(const Layout* start, const Layout* goal,
                                             shard_math::Sizes global_sizes, std::int64_t element_size) {
  if (start == goal) return {};
  return Search(start, goal, global_sizes, element_size).run();
}

}  // namespace dtensor::detail
