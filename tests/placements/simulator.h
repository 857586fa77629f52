// A simulator of meshes without ranks: it gives every rank its part of a tensor as a list of numbers, carries
// out the steps of a redistribution plan on those lists, and counts what moves. It owes nothing to
// shard_math: what a rank holds is found by cutting lists of indices, so that a fault there is seen here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "placements/layout.h"
#include "placements/redistribution.h"

namespace dtensor::simulator {

using Numbers = std::vector<std::int64_t>;

// `held` cut in `pieces` lists of ceil(n/k) elements, as far as they reach; the piece of `index`.
inline Numbers piece_of(const Numbers& held, std::int64_t pieces, std::int64_t index) {
  std::int64_t length = 0;
  while (length * pieces < static_cast<std::int64_t>(held.size())) ++length;
  Numbers result;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(held.size()); ++i) {
    if (length > 0 && i / length == index) result.push_back(held[static_cast<std::size_t>(i)]);
  }
  return result;
}

// The indices of `tensor_dim`, of `n`, that the rank at `coordinate` holds, in storage order.
inline Numbers held_indices(const Layout& layout, std::int64_t tensor_dim, std::int64_t n,
                            const Numbers& coordinate) {
  Numbers held(static_cast<std::size_t>(n));
  std::iota(held.begin(), held.end(), 0);
  for (const int mesh_dim : layout.cut_order()) {
    const auto& placement = layout.placement(mesh_dim);
    if (!placement.is_sharded(tensor_dim)) continue;
    const std::int64_t pieces = layout.mesh().size(mesh_dim);
    const std::int64_t index = coordinate[static_cast<std::size_t>(mesh_dim)];
    if (placement.is_shard()) {
      held = piece_of(held, pieces, index);
      continue;
    }
    Numbers packed;
    auto part_begin = held.begin();
    for (const auto part : placement.parts()) {
      const Numbers mine = piece_of(Numbers(part_begin, part_begin + part), pieces, index);
      packed.insert(packed.end(), mine.begin(), mine.end());
      part_begin += part;
    }
    held = packed;
  }
  return held;
}

// All layouts of a mesh whose placements are among `options`, with every cut order that means something.
inline std::vector<const Layout*> all_layouts(const MeshLayout* mesh, const Placements& options) {
  std::vector<const Layout*> result;
  const auto ndim = static_cast<std::size_t>(mesh->ndim());
  std::size_t count = 1;
  for (std::size_t d = 0; d < ndim; ++d) count *= options.size();
  for (std::size_t code = 0; code < count; ++code) {
    Placements placements;
    for (std::size_t d = 0, rest = code; d < ndim; ++d, rest /= options.size()) {
      placements.push_back(options[rest % options.size()]);
    }
    std::vector<int> order(ndim);
    std::iota(order.begin(), order.end(), 0);
    do {
      bool possible = true;  // an Interleaved cut only as the outermost
      for (std::size_t later = 1; later < ndim; ++later) {
        const auto& placement = placements[static_cast<std::size_t>(order[later])];
        for (std::size_t outer = 0; outer < later; ++outer) {
          possible =
              possible && !(placement.is_interleaved() &&
                            placements[static_cast<std::size_t>(order[outer])].is_sharded(placement.dim()));
        }
      }
      if (!possible) continue;
      const auto* layout = Layout::of(mesh, placements, order);
      if (std::find(result.begin(), result.end(), layout) == result.end()) result.push_back(layout);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return result;
}

inline double fill_value(ReduceOp op) { return op == ReduceOp::product ? 1 : 0; }

inline double reduce(ReduceOp op, const std::vector<double>& values) {
  double result = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result += values[i];
        break;
      case ReduceOp::product:
        result *= values[i];
        break;
      case ReduceOp::max:
        result = std::max(result, values[i]);
        break;
      case ReduceOp::min:
        result = std::min(result, values[i]);
        break;
    }
  }
  return op == ReduceOp::avg ? result / static_cast<double>(values.size()) : result;
}

// One tensor of given sizes on one mesh, for any number of layouts and plans. Element i is worth i + 1.
class Tensor {
 public:
  Tensor(const MeshLayout* mesh, Numbers sizes) : mesh_(mesh), sizes_(std::move(sizes)) {
    for (const auto size : sizes_) count_ *= size;
    for (std::int64_t position = 0; position < mesh_->size(); ++position) {
      coordinates_.push_back(*mesh_->coordinate_of(mesh_->ranks()[static_cast<std::size_t>(position)]));
    }
    std::int64_t stride = 1;
    strides_.resize(static_cast<std::size_t>(mesh_->ndim()));
    for (int mesh_dim = mesh_->ndim(); mesh_dim-- > 0; stride *= mesh_->size(mesh_dim)) {
      strides_[static_cast<std::size_t>(mesh_dim)] = stride;
    }
  }

  // Carries out `plan` from valid data of `from`. Returns what is wrong, or nothing.
  std::optional<std::string> run(const Layout* from, const Layout* to, const RedistributionPlan& plan,
                                 std::int64_t element_size) {
    data_ = initial(*from);
    const Layout* now = from;
    std::int64_t bytes = 0;
    for (const auto& step : plan.steps) {
      if (step.before != now) return "a step does not begin where the last one ended";
      for (int mesh_dim = 0; mesh_dim < mesh_->ndim(); ++mesh_dim) {
        const bool same = step.before->placement(mesh_dim) == step.after->placement(mesh_dim);
        if (same == (mesh_dim == step.mesh_dim))
          return "a step must change the placement of its mesh dimension alone";
      }
      received_ = 0;
      if (auto fault = apply(step)) return std::string(to_string(step.kind)) + ": " + *fault;
      if (step.bytes != received_ * element_size) {
        return std::string(to_string(step.kind)) + " reports " + std::to_string(step.bytes) + " bytes, but " +
               std::to_string(received_ * element_size) + " moved";
      }
      bytes += step.bytes;
      now = step.after;
    }
    if (now != to) return "the plan ends at " + now->to_string();
    if (bytes != plan.bytes) return "the plan's bytes are not the sum of its steps'";
    return check(*to);
  }

 private:
  // What each rank holds of a layout: `held` = flat global indices in storage order, `position` = the
  // inverse, or -1.
  struct Part {
    Numbers held;
    Numbers position;
  };
  using Data = std::vector<std::vector<double>>;  // per rank

  const std::vector<Part>& parts(const Layout& layout) {
    auto& known = parts_[&layout];
    if (!known.empty()) return known;
    for (const auto& coordinate : coordinates_) {
      Part part{{0}, Numbers(static_cast<std::size_t>(count_), -1)};
      for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
        const auto along = held_indices(layout, static_cast<std::int64_t>(dim), sizes_[dim], coordinate);
        Numbers longer;
        for (const auto outer : part.held) {
          for (const auto index : along) longer.push_back(outer * sizes_[dim] + index);
        }
        part.held = std::move(longer);
      }
      for (std::size_t i = 0; i < part.held.size(); ++i) {
        part.position[static_cast<std::size_t>(part.held[i])] = static_cast<std::int64_t>(i);
      }
      known.push_back(std::move(part));
    }
    return known;
  }

  // The positions of the ranks that differ from `rank` along `mesh_dim` only, in order.
  std::vector<std::size_t> group(std::size_t rank, int mesh_dim) const {
    const auto d = static_cast<std::size_t>(mesh_dim);
    std::vector<std::size_t> members;
    for (std::int64_t i = 0; i < mesh_->size(mesh_dim); ++i) {
      members.push_back(static_cast<std::size_t>(static_cast<std::int64_t>(rank) +
                                                 (i - coordinates_[rank][d]) * strides_[d]));
    }
    return members;
  }

  // What the rank at `coordinate` contributes to `value`: the last mesh dimension is reduced first, so the
  // first one divides first. All figures are small multiples of powers of two, hence exact.
  static double contribution(double value, const Layout& layout, const Numbers& coordinate,
                             std::int64_t element) {
    for (int mesh_dim = 0; mesh_dim < layout.mesh_ndim(); ++mesh_dim) {
      const auto& placement = layout.placement(mesh_dim);
      if (!placement.is_partial()) continue;
      const std::int64_t ranks = layout.mesh().size(mesh_dim);
      const std::int64_t index = coordinate[static_cast<std::size_t>(mesh_dim)];
      const std::int64_t chosen = (element + mesh_dim) % ranks;  // whose contribution completes the value
      const auto other = static_cast<double>(1 + (element + index * 3) % 5);
      double others = 0;
      for (std::int64_t i = 0; i < ranks; ++i)
        others += i == chosen ? 0 : static_cast<double>(1 + (element + i * 3) % 5);
      switch (placement.reduce_op()) {
        case ReduceOp::sum:
          value = index == chosen ? value - others : other;
          break;
        case ReduceOp::avg:
          value = index == chosen ? value * static_cast<double>(ranks) - others : other;
          break;
        case ReduceOp::product:
          value = index == chosen ? value * static_cast<double>(std::int64_t{1} << (ranks - 1)) : 0.5;
          break;
        case ReduceOp::max:
          value = index == chosen ? value : value - other;
          break;
        case ReduceOp::min:
          value = index == chosen ? value : value + other;
          break;
      }
    }
    return value;
  }

  Data initial(const Layout& layout) {
    Data data;
    const auto& all = parts(layout);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      data.emplace_back();
      for (const auto element : all[rank].held) {
        data.back().push_back(
            contribution(static_cast<double>(element + 1), layout, coordinates_[rank], element));
      }
    }
    return data;
  }

  std::vector<double> at(const std::vector<std::size_t>& members, std::size_t position) const {
    std::vector<double> values;
    for (const auto member : members) values.push_back(data_[member][position]);
    return values;
  }

  static std::optional<std::string> check_kind(const RedistributionStep& step) {
    const auto& before = step.before->placement(step.mesh_dim);
    const auto& after = step.after->placement(step.mesh_dim);
    bool fits = false;
    switch (step.kind) {
      case StepKind::slice:
        fits = before.is_replicate() && after.is_sharded();
        break;
      case StepKind::to_partial:
        fits = before.is_replicate() && after.is_partial();
        break;
      case StepKind::all_reduce:
        fits = before.is_partial() && after.is_replicate();
        break;
      case StepKind::reduce_scatter:
        fits = before.is_partial() && after.is_sharded();
        break;
      case StepKind::all_gather:
        fits = before.is_sharded() && after.is_replicate();
        break;
      case StepKind::all_to_all:
        fits = before.is_sharded() && after.is_sharded();
        break;
    }
    if (fits) return std::nullopt;
    return "does not turn " + before.to_string() + " into " + after.to_string();
  }

  std::optional<std::string> apply(const RedistributionStep& step) {
    const auto& before = parts(*step.before);
    const auto& after = parts(*step.after);
    if (step.before->mesh().size(step.mesh_dim) == 1) {  // a change of label, whatever the kind
      for (std::size_t rank = 0; rank < before.size(); ++rank) {
        if (before[rank].held != after[rank].held)
          return "on a mesh dimension of size 1 changes what a rank holds";
      }
      return std::nullopt;
    }
    if (auto fault = check_kind(step)) return fault;
    Data result(before.size());
    for (std::size_t rank = 0; rank < before.size(); ++rank) {
      const auto members = group(rank, step.mesh_dim);
      std::int64_t kept = 0;
      for (const auto element : after[rank].held) {
        const auto index = static_cast<std::size_t>(element);
        const std::int64_t mine = before[rank].position[index];
        kept += mine >= 0 ? 1 : 0;
        double value = 0;
        if (step.kind == StepKind::all_reduce || step.kind == StepKind::reduce_scatter) {
          for (const auto member : members) {
            if (before[member].held != before[rank].held)
              return "the members of a group hold different elements";
          }
          if (mine < 0) return "reduces what no member holds";
          value = reduce(step.before->placement(step.mesh_dim).reduce_op(),
                         at(members, static_cast<std::size_t>(mine)));
        } else if (step.kind == StepKind::slice || step.kind == StepKind::to_partial) {
          if (mine < 0) return "needs an element that the rank does not hold";
          value = data_[rank][static_cast<std::size_t>(mine)];
          const auto& placement = step.after->placement(step.mesh_dim);
          const bool copies = !placement.is_partial() || (placement.reduce_op() != ReduceOp::sum &&
                                                          placement.reduce_op() != ReduceOp::product);
          if (!copies && members.front() != rank) value = fill_value(placement.reduce_op());
        } else {
          int owners = 0;
          for (const auto member : members) {
            const std::int64_t theirs = before[member].position[index];
            if (theirs < 0) continue;
            ++owners;
            value = data_[member][static_cast<std::size_t>(theirs)];
          }
          if (owners != 1)
            return "needs an element that " + std::to_string(owners) + " members of its group hold";
        }
        result[rank].push_back(value);
      }
      count_received(step.kind, static_cast<std::int64_t>(before[rank].held.size()),
                     static_cast<std::int64_t>(after[rank].held.size()), kept);
    }
    data_ = std::move(result);
    return std::nullopt;
  }

  // The house's way to count, whatever the algorithm: see `RedistributionStep::bytes`.
  void count_received(StepKind kind, std::int64_t input, std::int64_t output, std::int64_t kept) {
    std::int64_t received = 0;
    switch (kind) {
      case StepKind::slice:
      case StepKind::to_partial:
        break;
      case StepKind::all_reduce:
        received = input;
        break;
      case StepKind::all_gather:
        received = output - kept;
        break;
      case StepKind::reduce_scatter:
      case StepKind::all_to_all:
        received = input - kept;
        break;
    }
    received_ = std::max(received_, received);
  }

  std::optional<std::string> check(const Layout& layout) {
    const auto& all = parts(layout);
    Data whole = data_;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (data_[rank].size() != all[rank].held.size()) return "a rank ends with a wrong number of elements";
    }
    // Pending reductions, the last mesh dimension first.
    for (int mesh_dim = layout.mesh_ndim(); mesh_dim-- > 0;) {
      const auto& placement = layout.placement(mesh_dim);
      if (!placement.is_partial()) continue;
      data_ = whole;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const auto members = group(rank, mesh_dim);
        for (std::size_t i = 0; i < whole[rank].size(); ++i) {
          whole[rank][i] = reduce(placement.reduce_op(), at(members, i));
        }
      }
    }
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      for (std::size_t i = 0; i < whole[rank].size(); ++i) {
        const auto element = all[rank].held[i];
        if (whole[rank][i] == static_cast<double>(element + 1)) continue;
        return "rank " + std::to_string(rank) + " ends with " + std::to_string(whole[rank][i]) +
               " for element " + std::to_string(element) + ", worth " + std::to_string(element + 1);
      }
    }
    return std::nullopt;
  }

  const MeshLayout* mesh_;
  Numbers sizes_;
  std::int64_t count_ = 1;
  std::vector<Numbers> coordinates_;
  Numbers strides_;
  std::map<const Layout*, std::vector<Part>> parts_;
  Data data_;
  std::int64_t received_ = 0;
};

}  // namespace dtensor::simulator
