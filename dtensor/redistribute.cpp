#include "dtensor/redistribute.h"

#include "placements/error.h"
#include "placements/redistribution.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

namespace dtensor::detail {
namespace {

using shard_math::Interval;

// One step, or several of a kind along several mesh dimensions at once (Note [Merged steps]), on this rank's local tensor.
// `parent` is the local tensor as it would be without the cuts of these mesh dimensions: every rank of the group holds a
// piece of the same parent.
class StepRunner {
 public:
  // `mesh_dims` in ascending order; of steps that cut or join a tensor dimension, the first cuts outermost.
  StepRunner(const RedistributionStep& step, std::span<const int> mesh_dims, c10::IntArrayRef sizes, MeshState& mesh)
      : step_(step), mesh_dims_(mesh_dims), sizes_(sizes), mesh_(mesh) {
    for (const int mesh_dim : mesh_dims) {
      ranks_ *= mesh.layout->size(mesh_dim);
      mine_ = mine_ * mesh.layout->size(mesh_dim) + mesh.coordinate[static_cast<std::size_t>(mesh_dim)];
    }
  }

  at::Tensor run(const at::Tensor& local) const {
    const Placement& from = step_.before->placement(step_.mesh_dim);
    const Placement& to = step_.after->placement(step_.mesh_dim);
    switch (step_.kind) {
      case StepKind::slice: return take(local, to.dim(), cut(to, local.size(to.dim()), mine_)).clone(contiguous);
      case StepKind::to_partial: return to_partial(local, to.reduce_op());
      case StepKind::all_reduce: return all_reduce(local, from.reduce_op());
      case StepKind::reduce_scatter: return reduce_scatter(local, from.reduce_op(), to);
      case StepKind::all_gather: return all_gather(local, from);
      case StepKind::all_to_all: return all_to_all(local, from, to);
    }
    TORCH_INTERNAL_ASSERT(false, "unknown redistribution step");
  }

 private:
  static constexpr auto contiguous = at::MemoryFormat::Contiguous;

  Group& group() const {
    return mesh_dims_.size() == 1 ? mesh_.group(step_.mesh_dim)
                                  : mesh_.group(std::vector<int>(mesh_dims_.begin(), mesh_dims_.end()));
  }
  // What rank `index` of the group holds of a parent's dimension. Cuts by several mesh dimensions are plain shards.
  std::vector<Interval> cut(const Placement& placement, std::int64_t size, std::int64_t index) const {
    if (mesh_dims_.size() == 1) return shard_math::cut(placement, size, ranks_, index);
    Interval piece{0, size};
    auto inner = ranks_;
    for (const int mesh_dim : mesh_dims_) {
      inner /= mesh_.layout->size(mesh_dim);
      const auto part = shard_math::cut(placement, piece.size, mesh_.layout->size(mesh_dim), index / inner).front();
      piece = {piece.offset + part.offset, part.size};
      index %= inner;
    }
    return {piece};
  }
  // Size of a tensor dimension of the parent: as in the layout of the two that these mesh dimensions do not cut.
  std::int64_t parent_size(const Layout& layout, std::int64_t dim) const {
    const Layout* without = &layout;
    for (const int mesh_dim : mesh_dims_) without = without->with(mesh_dim, Placement());
    return shard_math::local_size(*without, dim, sizes_[static_cast<std::size_t>(dim)], mesh_.coordinate);
  }
  // Runs of a dimension, one after the other; a view where there is one run.
  static at::Tensor take(const at::Tensor& tensor, std::int64_t dim, const std::vector<Interval>& runs) {
    if (runs.size() == 1) {
      const auto offset = std::min(runs[0].offset, tensor.size(dim));
      return tensor.narrow(dim, offset, runs[0].size);
    }
    std::vector<at::Tensor> parts;
    for (const auto& run : runs) parts.push_back(tensor.narrow(dim, std::min(run.offset, tensor.size(dim)), run.size));
    return at::cat(parts, dim);
  }
  static std::int64_t total(const std::vector<Interval>& runs) {
    std::int64_t size = 0;
    for (const auto& run : runs) size += run.size;
    return size;
  }

  at::Tensor to_partial(const at::Tensor& local, ReduceOp op) const {
    const bool neutral = mine_ != 0 && (op == ReduceOp::sum || op == ReduceOp::product);
    if (!neutral) return local.clone(contiguous);
    return op == ReduceOp::sum ? at::zeros(local.sizes(), local.options()) : at::ones(local.sizes(), local.options());
  }

  at::Tensor all_reduce(const at::Tensor& local, ReduceOp op) const {
    auto result = local.clone(contiguous);
    group().all_reduce(result, op).wait();
    return result;
  }

  at::Tensor reduce_scatter(const at::Tensor& local, ReduceOp op, const Placement& to) const {
    const auto parent = local.size(to.dim());
    std::vector<at::Tensor> inputs;
    const auto source = local.contiguous();
    for (std::int64_t i = 0; i < ranks_; ++i)
      inputs.push_back(take(source, to.dim(), cut(to, parent, i)).contiguous());
    auto output = at::empty_like(inputs[static_cast<std::size_t>(mine_)], contiguous);
    group().reduce_scatter(output, inputs, op).wait();
    return output;
  }

  // Pieces of every rank into the parent. Pieces along the first dimension are received in place.
  at::Tensor all_gather(const at::Tensor& local, const Placement& from) const {
    const auto dim = from.dim();
    const auto size = parent_size(*step_.before, dim);
    auto sizes = local.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = size;
    auto parent = at::empty(sizes, local.options());
    std::vector<at::Tensor> pieces;
    for (std::int64_t i = 0; i < ranks_; ++i) {
      const auto runs = cut(from, size, i);
      if (dim == 0 && runs.size() == 1) {
        pieces.push_back(take(parent, 0, runs));
      } else {
        sizes[static_cast<std::size_t>(dim)] = total(runs);
        pieces.push_back(at::empty(sizes, local.options()));
      }
    }
    group().all_gather(pieces, local.contiguous()).wait();
    for (std::int64_t i = 0; i < ranks_; ++i) put(parent, dim, cut(from, size, i), pieces[static_cast<std::size_t>(i)]);
    return parent;
  }

  // Writes a piece to its runs of the parent, unless it is a view of them already.
  static void put(at::Tensor& parent, std::int64_t dim, const std::vector<Interval>& runs, const at::Tensor& piece) {
    if (piece.storage().is_alias_of(parent.storage())) return;
    std::int64_t offset = 0;
    for (const auto& run : runs) {
      if (run.size > 0) parent.narrow(dim, run.offset, run.size).copy_(piece.narrow(dim, offset, run.size));
      offset += run.size;
    }
  }

  at::Tensor all_to_all(const at::Tensor& local, const Placement& from, const Placement& to) const {
    return from.dim() == to.dim() ? recut(local, from, to) : exchange(local, from, to);
  }

  // Shard(a) -> Shard(b): send each rank its piece of dimension b, receive everybody's piece of dimension a.
  at::Tensor exchange(const at::Tensor& local, const Placement& from, const Placement& to) const {
    const auto before = parent_size(*step_.before, from.dim()), after = local.size(to.dim());
    if (from.is_shard() && to.is_shard() && before % ranks_ == 0 && after % ranks_ == 0)
      return exchange_alike(local, from.dim(), to.dim());
    std::vector<at::Tensor> inputs, outputs;
    auto sizes = local.sizes().vec();
    sizes[static_cast<std::size_t>(to.dim())] = total(cut(to, after, mine_));
    for (std::int64_t i = 0; i < ranks_; ++i) {
      inputs.push_back(take(local, to.dim(), cut(to, after, i)).contiguous());
      sizes[static_cast<std::size_t>(from.dim())] = total(cut(from, before, i));
      outputs.push_back(at::empty(sizes, local.options()));
    }
    group().all_to_all(outputs, inputs).wait();
    sizes[static_cast<std::size_t>(from.dim())] = before;
    auto result = at::empty(sizes, local.options());
    for (std::int64_t i = 0; i < ranks_; ++i) put(result, from.dim(), cut(from, before, i), outputs[static_cast<std::size_t>(i)]);
    return result;
  }

  // The same for pieces of one size: all of them are rearranged at once, before and after.
  at::Tensor exchange_alike(const at::Tensor& local, std::int64_t from, std::int64_t to) const {
    const auto sent = local.unflatten(to, {ranks_, local.size(to) / ranks_}).movedim(to, 0).contiguous();
    const auto received = at::empty_like(sent);
    auto outputs = received.unbind(0);
    group().all_to_all(outputs, sent.unbind(0)).wait();
    return received.movedim(0, from).flatten(from, from + 1).contiguous();
  }

  // Where `a` and `b` overlap, in the order of `a`: the run in the parent and its offsets inside `a` and `b`.
  struct Overlap {
    std::int64_t in_a, in_b, size;
  };
  static std::vector<Overlap> overlaps(const std::vector<Interval>& a, const std::vector<Interval>& b) {
    std::vector<Overlap> all;
    std::int64_t at_a = 0;
    for (const auto& x : a) {
      std::int64_t at_b = 0;
      for (const auto& y : b) {
        const auto common = shard_math::intersection(x, y);
        if (common.size > 0)
          all.push_back({at_a + common.offset - x.offset, at_b + common.offset - y.offset, common.size});
        at_b += y.size;
      }
      at_a += x.size;
    }
    return all;
  }

  // Another kind of cut of the same dimension (Shard <-> Interleaved).
  at::Tensor recut(const at::Tensor& local, const Placement& from, const Placement& to) const {
    const auto dim = from.dim(), size = parent_size(*step_.before, dim);
    const auto held = cut(from, size, mine_), wanted = cut(to, size, mine_);
    std::vector<at::Tensor> inputs, outputs;
    std::vector<std::vector<Overlap>> places;
    auto sizes = local.sizes().vec();
    for (std::int64_t i = 0; i < ranks_; ++i) {
      std::vector<Interval> sent;
      for (const auto& part : overlaps(held, cut(to, size, i))) sent.push_back({part.in_a, part.size});
      if (sent.empty()) sent.push_back({0, 0});
      inputs.push_back(take(local, dim, sent).contiguous());
      places.push_back(overlaps(cut(from, size, i), wanted));
      std::int64_t received = 0;
      for (const auto& part : places.back()) received += part.size;
      sizes[static_cast<std::size_t>(dim)] = received;
      outputs.push_back(at::empty(sizes, local.options()));
    }
    group().all_to_all(outputs, inputs).wait();
    sizes[static_cast<std::size_t>(dim)] = total(wanted);
    auto result = at::empty(sizes, local.options());
    for (std::int64_t i = 0; i < ranks_; ++i) {
      std::int64_t offset = 0;
      for (const auto& part : places[static_cast<std::size_t>(i)]) {
        result.narrow(dim, part.in_b, part.size)
            .copy_(outputs[static_cast<std::size_t>(i)].narrow(dim, offset, part.size));
        offset += part.size;
      }
    }
    return result;
  }

  const RedistributionStep& step_;
  std::span<const int> mesh_dims_;
  c10::IntArrayRef sizes_;
  MeshState& mesh_;
  std::int64_t ranks_ = 1, mine_ = 0;  // of the group
};

// Note [Merged steps]
// Steps of one kind that follow each other along several mesh dimensions are one step over all their ranks: one latency
// instead of several, the same bytes. All-reduces by one operator in any order; all-gathers that join one tensor dimension
// again, from the innermost cut to the outermost; reduce-scatters that cut one, from the outermost to the innermost. Ranks of
// a merged group are in row-major order of ascending mesh dimensions, so cuts have to be in that order too.
bool continues(const RedistributionStep& first, const RedistributionStep& last, const RedistributionStep& next) {
  if (next.kind != first.kind || !communicates(next)) return false;
  const auto &before = next.before->placement(next.mesh_dim), &after = next.after->placement(next.mesh_dim);
  const auto &before_first = first.before->placement(first.mesh_dim), &after_first = first.after->placement(first.mesh_dim);
  switch (first.kind) {
    case StepKind::all_reduce: return before.reduce_op() == before_first.reduce_op();
    case StepKind::all_gather: return before.is_shard() && before == before_first && next.mesh_dim < last.mesh_dim;
    case StepKind::reduce_scatter:
      return after.is_shard() && after == after_first && before == before_first && next.mesh_dim > last.mesh_dim;
    default: return false;
  }
}

// The mesh dimensions, in ascending order, of the steps from `begin` that are done at once, and where they end.
std::pair<std::vector<int>, std::size_t> merged(const RedistributionPlan& plan, std::size_t begin) {
  std::vector<int> mesh_dims{plan.steps[begin].mesh_dim};
  auto end = begin + 1;
  while (end < plan.steps.size() && continues(plan.steps[begin], plan.steps[end - 1], plan.steps[end]))
    mesh_dims.push_back(plan.steps[end++].mesh_dim);
  std::sort(mesh_dims.begin(), mesh_dims.end());
  return {mesh_dims, end};
}

// Plans are pure; a training step asks for the same ones again and again.
struct PlanKey {
  const Layout* from;
  const Layout* to;
  std::vector<std::int64_t> sizes;
  std::size_t element_size;
  bool operator==(const PlanKey&) const = default;
};
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    std::size_t seed = std::hash<const void*>()(key.from);
    const auto mix = [&seed](std::size_t value) { seed ^= value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2); };
    mix(std::hash<const void*>()(key.to));
    mix(key.element_size);
    for (auto size : key.sizes) mix(static_cast<std::size_t>(size));
    return seed;
  }
};

const RedistributionPlan& cached_plan(const Layout* from, const Layout* to, c10::IntArrayRef sizes,
                                      std::size_t element_size) {
  static thread_local std::unordered_map<PlanKey, RedistributionPlan, PlanKeyHash> plans;
  PlanKey key{from, to, sizes.vec(), element_size};
  auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  if (plans.size() > 4096) plans.clear();
  auto plan = plan_redistribution(from, to, key.sizes, static_cast<std::int64_t>(element_size));
  return plans.emplace(std::move(key), std::move(plan)).first->second;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::int64_t as_int(const Layout* layout) { return reinterpret_cast<std::int64_t>(layout); }  // layouts are immortal
const Layout* as_layout(const c10::IValue& value) { return reinterpret_cast<const Layout*>(value.toInt()); }

struct RedistributeFunction : torch::autograd::Function<RedistributeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, std::int64_t to) {
    context->saved_data["from"] = as_int(meta(tensor).layout);
    return move(tensor, reinterpret_cast<const Layout*>(to));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!is_dtensor(gradients[0])) return {gradients[0], at::Tensor()};
    CollectiveReason reason("redistribute backward");
    return {redistribute(gradients[0], as_layout(context->saved_data["from"])->without_partial()), at::Tensor()};
  }
};

struct MoveDimsFunction : torch::autograd::Function<MoveDimsFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, std::int64_t to,
                            std::vector<std::int64_t> mesh_dims) {
    context->saved_data["from"] = as_int(meta(tensor).layout);
    context->saved_data["mesh_dims"] = mesh_dims;
    const auto* layout = reinterpret_cast<const Layout*>(to);
    return meta(tensor).layout == layout ? rewrap(tensor) : move(tensor, layout);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& gradient = gradients[0];
    if (!is_dtensor(gradient)) return {gradient, at::Tensor(), at::Tensor()};
    const Layout* from = as_layout(context->saved_data["from"])->without_partial();
    const Layout* to = meta(gradient).layout;
    const auto mesh_dims = context->saved_data["mesh_dims"].toIntVector();
    auto placements = to->placements();
    for (auto dim : mesh_dims) placements[static_cast<std::size_t>(dim)] = from->placement(static_cast<int>(dim));
    to = Layout::of(to->mesh_pointer(), placements, from->cut_order());
    if (to == meta(gradient).layout) return {gradient, at::Tensor(), at::Tensor()};
    CollectiveReason reason("wish");
    return {move_dims(gradient, to, mesh_dims), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor move_local(const at::Tensor& local, const Layout* from, const Layout* to, c10::IntArrayRef sizes,
                      MeshState& mesh, bool may_alias) {
  if (from == to) return may_alias ? local : local.clone();
  if (!mesh.member) return at::empty({0}, local.options());
  const auto& plan = cached_plan(from, to, sizes, local.element_size());
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor result = local.is_conj() || local.is_neg() ? local.resolve_conj().resolve_neg() : local;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const auto& step = plan.steps[i];
    // On a mesh dimension of size 1 every placement holds the same values.
    if (mesh.layout->size(step.mesh_dim) == 1) continue;
    if (i + 1 < plan.steps.size()) {
      if (const auto [mesh_dims, end] = merged(plan, i); mesh_dims.size() > 1) {
        result = StepRunner(plan.steps[i], mesh_dims, sizes, mesh).run(result);
        i = end - 1;
        continue;
      }
    }
    result = StepRunner(step, {&step.mesh_dim, 1}, sizes, mesh).run(result);
  }
  if (!may_alias && result.is_same(local)) result = local.clone(at::MemoryFormat::Contiguous);
  return result;
}

at::Tensor move(const at::Tensor& tensor, const Layout* to) {
  const Meta& data = meta(tensor);
  if (data.layout == to) return tensor;
  auto local = move_local(data.local, data.layout, to, tensor.sizes(), *data.mesh, false);
  return wrap(local.contiguous(), to, data.mesh, tensor.sizes());
}

at::Tensor redistribute(const at::Tensor& tensor, const Layout* to) {
  if (meta(tensor).layout == to) return tensor;
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return move(tensor, to);
  return RedistributeFunction::apply(tensor, as_int(to));
}

at::Tensor move_dims(const at::Tensor& tensor, const Layout* to, const std::vector<std::int64_t>& mesh_dims) {
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return move(tensor, to);
  return MoveDimsFunction::apply(tensor, as_int(to), mesh_dims);
}

}  // namespace dtensor::detail
