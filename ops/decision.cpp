#include "ops/decision.h"

#include "placements/error.h"
#include "placements/redistribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace dtensor {
namespace {

// Note [One mesh dimension at a time]
// A rule answers for one mesh dimension; decisions for the dimensions of a mesh are made one after the other, each from
// the placements on that dimension alone. Nested cuts of one tensor dimension stay consistent because every operand
// that carries a factor is cut by the same mesh dimensions in the same order (see `cut_order` below).

// What one mesh dimension could do: shard a factor, let operands stay pending, or have everything whole.
struct Candidate {
  std::vector<Placement> operands;
  std::vector<Placement> results;
  double cost = 0;
  bool gives_up = false;  // operands that were cut, and results that every rank holds whole
  int free_moves = 0;
  std::int64_t idle = 0;  // elements by which ranks hold less than the fullest one, where it is cut anew
  int factor = no_factor;
  std::string name;  // for explain
};

class Solver {
 public:
  Solver(const OperatorCall& call, const Rule& rule, bool in_place)
      : call_(call), rule_(rule), in_place_(in_place) {
    TORCH_INTERNAL_ASSERT(rule.operands.size() == call.operands.size(), "rule of ", call.name, " describes ",
                          rule.operands.size(), " operands, the call has ", call.operands.size());
  }

  std::shared_ptr<Decision> solve() {
    const auto mesh_ndim = static_cast<std::size_t>(call_.mesh->ndim());
    std::vector<Placements> operands(call_.operands.size(), Placements(mesh_ndim));
    std::vector<Placements> results(rule_.results.size(), Placements(mesh_ndim));
    cuts_.assign(rule_.factors.size(), 1);
    auto decision = std::make_shared<Decision>();
    for (int mesh_dim = 0; mesh_dim < call_.mesh->ndim(); ++mesh_dim) {
      auto candidates = candidates_for(mesh_dim);
      if (candidates.empty()) return nullptr;
      std::size_t best = 0;
      for (std::size_t i = 1; i < candidates.size(); ++i) {
        const auto &a = candidates[i], &b = candidates[best];
        if (std::tie(a.cost, a.gives_up, a.free_moves, a.idle) < std::tie(b.cost, b.gives_up, b.free_moves, b.idle)) best = i;
      }
      const Candidate& chosen = candidates[best];
      // A choice among several that cost something depends on how much each moves.
      if (chosen.cost > 0 && candidates.size() > 1) decision->by_sizes = true;
      decision->cost += chosen.cost;
      note(*decision, mesh_dim, candidates, best);
      if (chosen.factor != no_factor)
        cuts_[static_cast<std::size_t>(chosen.factor)] *= call_.mesh->size(mesh_dim);
      for (std::size_t i = 0; i < operands.size(); ++i)
        operands[i][static_cast<std::size_t>(mesh_dim)] = chosen.operands[i];
      for (std::size_t i = 0; i < results.size(); ++i)
        results[i][static_cast<std::size_t>(mesh_dim)] = chosen.results[i];
    }
    finish(*decision, operands, results);
    return decision;
  }

 private:
  // Bytes of the part of an operand that this mesh dimension moves among its ranks.
  double movable_bytes(const Operand& operand, int mesh_dim) const {
    double bytes = static_cast<double>(c10::elementSize(operand.dtype));
    for (auto size : operand.sizes) bytes *= static_cast<double>(size);
    if (operand.layout)
      for (int other = 0; other < call_.mesh->ndim(); ++other)
        if (other != mesh_dim && operand.layout->placement(other).is_sharded())
          bytes /= static_cast<double>(call_.mesh->size(other));
    return bytes;
  }

  double move_cost(const Operand& operand, int mesh_dim, const Placement& from, const Placement& to) const {
    const auto ranks = static_cast<double>(call_.mesh->size(mesh_dim));
    if (ranks == 1 || from == to || from.is_replicate()) return 0;
    const double bytes = movable_bytes(operand, mesh_dim), others = (ranks - 1) / ranks;
    if (from.is_partial()) return latency_bytes + (to.is_sharded() ? bytes * others : bytes);
    if (to.is_sharded()) return latency_bytes + bytes / ranks * others;
    return latency_bytes + bytes * others;
  }

  void add(std::vector<Candidate>& all, Candidate candidate, int mesh_dim) const {
    for (std::size_t i = 0; i < candidate.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const Placement from = operand.placement(mesh_dim), &to = candidate.operands[i];
      if (!operand.defined || from == to) continue;
      candidate.cost += move_cost(operand, mesh_dim, from, to);
      candidate.free_moves += 1;
    }
    const auto whole = [](const Placement& placement) { return placement.is_replicate(); };
    candidate.gives_up = std::all_of(candidate.results.begin(), candidate.results.end(), whole) &&
                         std::any_of(call_.operands.begin(), call_.operands.end(), [&](const Operand& operand) {
                           return operand.placement(mesh_dim).is_sharded();
                         });
    if (in_place_) {
      // What is written keeps its placement: neither the operand nor the result may differ from it.
      const Placement self = call_.operands[0].placement(mesh_dim);
      if (candidate.operands[0] != self || (!candidate.results.empty() && candidate.results[0] != self))
        return;
    }
    all.push_back(std::move(candidate));
  }

  Candidate blank() const {
    Candidate candidate;
    candidate.operands.resize(call_.operands.size());
    candidate.results.resize(rule_.results.size());
    return candidate;
  }

  void add_pending(std::vector<Candidate>& all, int mesh_dim) const {
    const Placement first = call_.operands.empty() ? Placement() : call_.operands[0].placement(mesh_dim);
    if (rule_.passes_any_pending && first.is_partial()) {
      auto candidate = blank();
      candidate.operands[0] = first;
      for (auto& result : candidate.results) result = first;
      candidate.name = "pending";
      add(all, std::move(candidate), mesh_dim);
    }
    for (const auto& set : rule_.linear) {
      ReduceOp op = ReduceOp::sum;
      bool pending = false, ready = true;
      for (int index : set) {
        const Placement placement = call_.operands[static_cast<std::size_t>(index)].placement(mesh_dim);
        if (placement.is_partial()) {
          if (pending && placement.reduce_op() != op) ready = false;
          op = placement.reduce_op();
          pending = true;
        } else if (!in_place_) {
          // Out of place, whole + pending reduces the pending one: a whole value is never made pending.
          ready = false;
        }
      }
      if (in_place_ && !first.is_partial()) ready = false;
      if (!ready || !pending || (op != ReduceOp::sum && op != ReduceOp::avg)) continue;
      auto candidate = blank();
      for (int index : set)
        if (call_.operands[static_cast<std::size_t>(index)].defined)
          candidate.operands[static_cast<std::size_t>(index)] = Partial(op);
      for (auto& result : candidate.results) result = Partial(op);
      candidate.name = "pending";
      add(all, std::move(candidate), mesh_dim);
    }
  }

  void add_factor(std::vector<Candidate>& all, int mesh_dim, int factor, const Placement& cut) const {
    auto candidate = blank();
    candidate.factor = factor;
    for (std::size_t i = 0; i < rule_.operands.size(); ++i)
      for (std::size_t dim = 0; dim < rule_.operands[i].size(); ++dim)
        if (rule_.operands[i][dim] == factor)
          candidate.operands[i] = cut.with_dim(static_cast<std::int64_t>(dim));
    const Factor& kind = rule_.factors[static_cast<std::size_t>(factor)];
    if (kind.packing == Factor::Packing::join)
      for (std::size_t i = 0; i < candidate.operands.size(); ++i)
        candidate.operands[i] = call_.operands[i].placement(mesh_dim);
    for (std::size_t r = 0; r < rule_.results.size(); ++r) {
      const ResultRule& result = rule_.results[r];
      bool carries = false;
      for (std::size_t dim = 0; dim < result.dims.size(); ++dim)
        if (result.dims[dim] == factor) {
          candidate.results[r] = cut_of(result, kind, cut, mesh_dim).with_dim(static_cast<std::int64_t>(dim));
          carries = true;
        }
      if (!carries && result.completed && !result.alike && result.defined && call_.mesh->size(mesh_dim) > 1)
        candidate.cost += completion_cost(result);
      if (carries || result.completed || !result.defined) continue;
      if (kind.kind == Factor::Kind::pass) return;  // a result would be cut in a dimension it does not have
      candidate.results[r] = Partial(kind.op);
    }
    candidate.name = fmt::format("shard factor {}", factor);
    add(all, std::move(candidate), mesh_dim);
  }

  // How a result is cut where operands are cut so: the same, but for packed dimensions.
  Placement cut_of(const ResultRule& result, const Factor& factor, const Placement& cut, int mesh_dim) const {
    if (factor.packing == Factor::Packing::none) return cut;
    std::vector<std::int64_t> parts;
    if (factor.packing == Factor::Packing::split) {
      const auto first = cut.parts().begin() + static_cast<std::ptrdiff_t>(result.parts.first);
      parts.assign(first, first + static_cast<std::ptrdiff_t>(result.parts.second));
    } else {
      for (const Operand& operand : call_.operands) {
        const auto own = operand.placement(mesh_dim);
        if (own.is_interleaved())
          parts.insert(parts.end(), own.parts().begin(), own.parts().end());
        else
          parts.push_back(operand.sizes[static_cast<std::size_t>(own.dim())]);
      }
    }
    return parts.size() == 1 ? Shard(cut.dim()) : Interleaved(cut.dim(), parts);
  }

  void add_factors(std::vector<Candidate>& all, int mesh_dim) const {
    std::vector<int> seen;
    for (std::size_t i = 0; i < rule_.operands.size(); ++i) {
      const Placement cut = call_.operands[i].placement(mesh_dim);
      if (!cut.is_sharded() || static_cast<std::size_t>(cut.dim()) >= rule_.operands[i].size()) continue;
      const int factor = rule_.operands[i][static_cast<std::size_t>(cut.dim())];
      if (factor == no_factor || std::find(seen.begin(), seen.end(), factor) != seen.end()) continue;
      const Factor& kind = rule_.factors[static_cast<std::size_t>(factor)];
      if (kind.kind == Factor::Kind::whole) continue;
      if (kind.even_only) {
        const auto pieces = cuts_[static_cast<std::size_t>(factor)] * call_.mesh->size(mesh_dim);
        if (kind.size % pieces != 0 || cut.is_interleaved()) continue;
      }
      if (kind.halo && (cut.is_interleaved() || cuts_[static_cast<std::size_t>(factor)] != 1)) continue;
      seen.push_back(factor);
      add_factor(all, mesh_dim, factor, cut);
    }
  }

  // Note [Cutting anew]
  // Where an operand is cut in a dimension that must be whole, it can be gathered, or cut anew in a dimension that passes:
  // an all-to-all, which moves less than the gather and leaves the results cut. A pending operand of an operator that
  // needs its value can be reduced and cut in one step, which moves less than reducing it everywhere. Tried where nothing
  // else is free, for every dimension that passes and that no other mesh dimension cuts. Whole operands stay whole: a
  // value that every rank holds plus a pending one is a value that every rank holds.
  void add_recuts(std::vector<Candidate>& all, int mesh_dim) const {
    if (in_place_ || call_.mesh->size(mesh_dim) == 1) return;
    if (std::any_of(all.begin(), all.end(), [](const Candidate& candidate) { return candidate.cost == 0; })) return;
    bool cut = false, pending = false, whole = false;
    for (const Operand& operand : call_.operands) {
      const Placement placement = operand.placement(mesh_dim);
      cut = cut || placement.is_sharded();
      pending = pending || (placement.is_partial() && operand.ndim() > 0);
      whole = whole || (operand.defined && operand.ndim() > 0 && placement.is_replicate());
    }
    if (!cut && (!pending || whole)) return;
    for (std::size_t f = 0; f < rule_.factors.size(); ++f) {
      const int factor = static_cast<int>(f);
      const Factor& kind = rule_.factors[f];
      const bool known = std::any_of(all.begin(), all.end(),
                                     [factor](const Candidate& candidate) { return candidate.factor == factor; });
      if (kind.kind != Factor::Kind::pass || kind.halo || kind.packing != Factor::Packing::none || known || cuts_[f] != 1 ||
          is_cut(factor))
        continue;
      const auto ranks = call_.mesh->size(mesh_dim), size = size_of(factor);
      if ((kind.even_only && kind.size % ranks != 0) || size < 2) continue;
      const auto before = all.size();
      add_factor(all, mesh_dim, factor, Shard(0));
      if (all.size() > before) all.back().idle = (size + ranks - 1) / ranks * ranks - size;
    }
  }

  // The global size of the dimensions that carry a factor; 1 for no_factor and for what the operator makes.
  std::int64_t size_of(int factor) const {
    const SizeSource source = source_of(factor);
    if (source.operand < 0) return 1;
    return call_.operands[static_cast<std::size_t>(source.operand)].sizes[static_cast<std::size_t>(source.dim)];
  }

  // What a kernel moves to complete a result over the ranks: two all-reduces of its size, say.
  double completion_cost(const ResultRule& result) const {
    double bytes = static_cast<double>(c10::elementSize(call_.operands[0].dtype));
    for (int factor : result.dims) bytes *= static_cast<double>(size_of(factor));
    return latency_bytes + 2 * bytes;
  }

  // Whether any mesh dimension cuts a tensor dimension that carries this factor.
  bool is_cut(int factor) const {
    for (std::size_t i = 0; i < rule_.operands.size(); ++i)
      for (std::size_t dim = 0; dim < rule_.operands[i].size(); ++dim)
        if (rule_.operands[i][dim] == factor && call_.operands[i].is_cut(static_cast<std::int64_t>(dim))) return true;
    return false;
  }

  std::vector<Candidate> candidates_for(int mesh_dim) const {
    std::vector<Candidate> all;
    if (rule_.ignores_values || rule_.keeps_layouts) {
      auto candidate = blank();
      for (std::size_t i = 0; i < candidate.operands.size(); ++i)
        candidate.operands[i] = call_.operands[i].placement(mesh_dim);
      const Placement first = candidate.operands.empty() ? Placement() : candidate.operands[0];
      for (std::size_t r = 0; r < candidate.results.size(); ++r) {
        candidate.results[r] = first;
        if (first.is_partial() && rule_.ignores_values && !in_place_) candidate.results[r] = Placement();
        if (first.is_sharded() && !in_place_) candidate.results[r] = carried(r, 0, first);
      }
      candidate.name = "as it is";
      add(all, std::move(candidate), mesh_dim);
      return all;
    }
    add_pending(all, mesh_dim);
    add_factors(all, mesh_dim);
    auto candidate = blank();
    candidate.name = "replicate";
    add(all, std::move(candidate), mesh_dim);
    add_recuts(all, mesh_dim);
    return all;
  }

  // The cut of a result that carries the factor which `first` cuts in an operand; Replicate where none does.
  Placement carried(std::size_t result, std::size_t operand, const Placement& first) const {
    const int factor = rule_.operands[operand][static_cast<std::size_t>(first.dim())];
    const auto& dims = rule_.results[result].dims;
    for (std::size_t dim = 0; dim < dims.size(); ++dim)
      if (factor != no_factor && dims[dim] == factor) return first.with_dim(static_cast<std::int64_t>(dim));
    return Placement();
  }

  void note(Decision& decision, int mesh_dim, const std::vector<Candidate>& all, std::size_t best) const {
    if (all[best].cost == 0 || all.size() < 2) return;
    std::size_t second = best == 0 ? 1 : 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i != best && all[i].cost < all[second].cost) second = i;
    decision.note += fmt::format("{}{}: {} ({:.0f}) before {} ({:.0f})", decision.note.empty() ? "" : "; ",
                                 call_.mesh->names()[static_cast<std::size_t>(mesh_dim)], all[best].name,
                                 all[best].cost, all[second].name, all[second].cost);
  }

  void finish(Decision& decision, const std::vector<Placements>& operands,
              const std::vector<Placements>& results) const {
    // Several mesh dimensions on one tensor dimension: the first operand with an order of its own sets the order.
    std::vector<int> cut_order;
    for (const auto& operand : call_.operands)
      if (operand.layout && !operand.layout->has_default_order()) {
        cut_order = operand.layout->cut_order();
        break;
      }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const Layout* wanted = operand.defined ? Layout::of(call_.mesh, operands[i], cut_order) : nullptr;
      if (wanted && !operand.layout && !wanted->is_replicated()) decision.slices_plain = true;
      if (wanted && operand.layout && wanted != operand.layout) decision.moves = true;
      decision.operands.push_back(wanted);
    }
    for (std::size_t r = 0; r < results.size(); ++r) {
      const ResultRule& rule = rule_.results[r];
      ResultDecision result;
      result.defined = rule.defined;
      result.layout = Layout::of(call_.mesh, results[r], cut_order);
      result.sizes = rule.sizes;
      result.view_dims = rule.view_dims;
      if (rule.sizes.empty())
        for (int factor : rule.dims) result.size_sources.push_back(source_of(factor));
      decision.results.push_back(std::move(result));
    }
    for (std::size_t factor = 0; factor < rule_.factors.size(); ++factor) {
      std::vector<SizeSource> places;
      for (std::size_t i = 0; i < rule_.operands.size(); ++i)
        for (std::size_t dim = 0; dim < rule_.operands[i].size(); ++dim)
          if (rule_.operands[i][dim] == static_cast<int>(factor))
            places.push_back({static_cast<std::int16_t>(i), static_cast<std::int16_t>(dim)});
      // The parts of an evenly cut factor may stand for groups of unlike sizes, as joined operands do.
      const Factor& kind = rule_.factors[factor];
      const bool alike = !kind.even_only && !kind.halo && kind.packing == Factor::Packing::none;
      if (places.size() > 1 && alike) decision.equal_sizes.push_back(std::move(places));
    }
    decision.kernel = rule_.kernel;
    decision.size_arguments = rule_.size_arguments;
    decision.list_result = rule_.list_result;
    decision.view = rule_.view;
    decision.by_sizes = decision.by_sizes || rule_.by_sizes;
  }

  SizeSource source_of(int factor) const {
    if (factor != no_factor)
      for (std::size_t i = 0; i < rule_.operands.size(); ++i)
        for (std::size_t dim = 0; dim < rule_.operands[i].size(); ++dim)
          if (rule_.operands[i][dim] == factor)
            return {static_cast<std::int16_t>(i), static_cast<std::int16_t>(dim)};
    return {};
  }

  const OperatorCall& call_;
  const Rule& rule_;
  bool in_place_;
  std::vector<std::int64_t> cuts_;  // per factor: into how many pieces the mesh dimensions so far cut it
};

}  // namespace

std::shared_ptr<Decision> decide(const OperatorCall& call, const Rule& rule, bool in_place) {
  auto decision = Solver(call, rule, in_place).solve();
  if (!decision && in_place && call.operands[0].layout && call.operands[0].layout->has_partial())
    throw UnsupportedError(
        fmt::format("{} would write through a pending value (argument 0) with an operator that is not linear "
                    "in it, which no rank "
                    "can do alone. Reduce it first: x = x.redistribute(...) to Replicate or Shard, or use "
                    "the out-of-place form.",
                    call.to_string()));
  return decision;
}

std::shared_ptr<Decision> decide_fallback(const OperatorCall& call) {
  auto decision = std::make_shared<Decision>();
  const Layout* replicated = Layout::of(call.mesh, Placements(static_cast<std::size_t>(call.mesh->ndim())));
  for (const auto& operand : call.operands) {
    decision->operands.push_back(operand.layout ? replicated : nullptr);
    if (operand.layout && operand.layout != replicated) decision->moves = true;
  }
  ResultDecision result;
  result.layout = replicated;
  decision->results.push_back(result);  // stands for every result
  decision->fallback = true;
  return decision;
}

std::string OperatorCall::to_string() const {
  std::string text = name + "(";
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand_ = operands[i];
    if (i) text += ", ";
    if (!operand_.defined)
      text += "none";
    else
      text += fmt::format("[{}] {}", fmt::join(operand_.sizes, ", "),
                          operand_.layout ? dtensor::to_string(operand_.layout->placements()) : "plain");
  }
  return text + ") on " + mesh->to_string();
}

}  // namespace dtensor
