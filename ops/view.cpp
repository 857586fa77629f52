// Views: the dim algebra that tells where a cut goes when dimensions are split, merged, moved, added or dropped.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"
#include "ops/view_copies.h"
#include "placements/error.h"

#include <algorithm>
#include <numeric>

namespace dtensor {
namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// The sizes a view asks for, with its one -1 resolved. Nothing where they do not fit: the stock operator then throws on
// every rank alike.
std::optional<Sizes> resolved(Sizes wanted, const Sizes& have) {
  std::int64_t known = 1, open = -1;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == -1) {
      if (open >= 0) return std::nullopt;
      open = static_cast<std::int64_t>(i);
    } else {
      known *= wanted[i];
    }
  }
  if (open >= 0) {
    if (known == 0 || product(have) % known != 0) return std::nullopt;
    wanted[static_cast<std::size_t>(open)] = product(have) / known;
  }
  if (product(wanted) != product(have)) return std::nullopt;
  return wanted;
}

// Sets factors of `from` and `to` for a reshape of one into the other. Dimensions fall into groups of equal product; in
// a group of one dimension each the cut passes; in a larger group only the leading dimension may be cut, and only where
// the pieces divide both leading sizes, because then each rank's block is a contiguous run on both sides.
void group_dims(RuleBuilder& builder, const Sizes& from, const Sizes& to, std::vector<int>& from_dims,
                std::vector<int>& to_dims) {
  from_dims.assign(from.size(), no_factor);
  to_dims.assign(to.size(), no_factor);
  if (product(from) == 0) {
    // Without elements groups cannot be told by products: equal leading dimensions pass.
    for (std::size_t i = 0; i < std::min(from.size(), to.size()) && from[i] == to[i]; ++i)
      from_dims[i] = to_dims[i] = builder.factor();
    return;
  }
  std::size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    if (i < from.size() && from[i] == 1) {
      ++i;
      continue;
    }
    if (j < to.size() && to[j] == 1) {
      ++j;
      continue;
    }
    const std::size_t first_from = i, first_to = j;
    std::int64_t a = from[i++], b = to[j++];
    while (a != b) {
      if (a < b)
        a *= from[i++];
      else
        b *= to[j++];
    }
    const bool single = i - first_from == 1 && j - first_to == 1;
    const int factor = single ? builder.factor() : builder.even_factor(std::gcd(from[first_from], to[first_to]));
    from_dims[first_from] = to_dims[first_to] = factor;
  }
}

std::optional<Rule> reshape_rule(const OperatorCall& call, bool is_view, LocalKernel kernel) {
  const Sizes have = call.operand(0).sizes.vec();
  auto wanted = resolved(call.argument(1).toIntVector(), have);
  if (!wanted) return std::nullopt;
  RuleBuilder builder(call);
  std::vector<int> from, to;
  group_dims(builder, have, *wanted, from, to);
  builder.operand(0, from).sized_result(to, *wanted).size_argument(1).passes_any_pending().by_sizes();
  if (is_view) builder.view();
  if (kernel) builder.kernel(kernel);
  return builder.build();
}

std::optional<Rule> view(const OperatorCall& call) { return reshape_rule(call, true, nullptr); }
std::optional<Rule> unsafe_view(const OperatorCall& call) { return reshape_rule(call, false, nullptr); }

// _reshape_alias(self, size, stride) states global strides; on a shard it is a plain view.
void local_reshape_alias(const KernelContext&, std::vector<c10::IValue>& stack) {
  auto sizes = stack[stack.size() - 2].toIntVector();
  auto self = stack[stack.size() - 3].toTensor();
  stack.resize(stack.size() - 3);
  stack.emplace_back(self.view(sizes));
}
std::optional<Rule> reshape_alias(const OperatorCall& call) { return reshape_rule(call, true, local_reshape_alias); }

std::optional<Rule> expand(const OperatorCall& call) {
  const auto& self = call.operand(0);
  Sizes wanted = call.argument(1).toIntVector();
  const auto added = static_cast<std::int64_t>(wanted.size()) - self.ndim();
  if (added < 0) return std::nullopt;
  RuleBuilder builder(call);
  auto from = builder.letters(0);
  std::vector<int> to(wanted.size(), no_factor);
  for (std::int64_t dim = 0; dim < self.ndim(); ++dim) {
    auto& size = wanted[static_cast<std::size_t>(dim + added)];
    const auto have = self.sizes[static_cast<std::size_t>(dim)];
    if (size == -1) size = have;
    if (size == have)
      to[static_cast<std::size_t>(dim + added)] = from[static_cast<std::size_t>(dim)];
    else
      from[static_cast<std::size_t>(dim)] = no_factor;
  }
  return builder.operand(0, from).sized_result(to, wanted).size_argument(1).passes_any_pending().by_sizes().view().build();
}

// Result dimension i is operand dimension order[i].
std::optional<Rule> permuted(const OperatorCall& call, const std::vector<std::int64_t>& order) {
  RuleBuilder builder(call);
  const auto from = builder.letters(0);
  std::vector<int> to;
  std::vector<ViewDim> places;
  for (auto dim : order) {
    to.push_back(from[static_cast<std::size_t>(dim)]);
    places.push_back({static_cast<int>(dim)});
  }
  return builder.result(to).passes_any_pending().view_dims(std::move(places)).build();
}

std::optional<Rule> permute(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  auto order = call.argument(1).toIntVector();
  if (static_cast<std::int64_t>(order.size()) != ndim) return std::nullopt;
  for (auto& dim : order) {
    dim = OperatorCall::wrap_dim(dim, ndim);
    if (dim < 0 || dim >= ndim) return std::nullopt;
  }
  return permuted(call, order);
}

std::optional<Rule> transpose(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  std::vector<std::int64_t> order(static_cast<std::size_t>(ndim));
  std::iota(order.begin(), order.end(), 0);
  if (ndim > 0) {
    std::int64_t a = 0, b = ndim - 1;
    if (call.arguments.size() >= 3) {
      a = OperatorCall::wrap_dim(call.argument(1).toInt(), ndim);
      b = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
    }
    if (a < 0 || b < 0 || a >= ndim || b >= ndim) return std::nullopt;
    std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
  }
  return permuted(call, order);
}

std::optional<Rule> unsqueeze(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto to = builder.letters(0);
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), call.operand(0).ndim() + 1);
  if (dim < 0 || dim > call.operand(0).ndim()) return std::nullopt;
  std::vector<ViewDim> places;
  for (int i = 0; i < static_cast<int>(to.size()); ++i) places.push_back({i});
  to.insert(to.begin() + dim, no_factor);
  places.insert(places.begin() + dim, ViewDim{});
  return builder.result(to).passes_any_pending().view_dims(std::move(places)).build();
}

// Drops the given dimensions where their global size is 1. The stock operator would look at local sizes, where a shard
// of one row must stay; so the kernel drops by global size.
void local_squeeze(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto count = context.global_arguments.size();
  auto local = stack[stack.size() - count].toTensor();
  const auto& call = context.operands[0];
  std::vector<bool> drop(static_cast<std::size_t>(call.ndim()), count == 1);
  if (count == 2) {
    const auto& dims = context.global_arguments[1];
    for (auto dim : dims.isInt() ? std::vector<std::int64_t>{dims.toInt()} : dims.toIntVector())
      if (call.ndim() > 0) drop[static_cast<std::size_t>(OperatorCall::wrap_dim(dim, call.ndim()))] = true;
  }
  for (std::int64_t dim = call.ndim() - 1; dim >= 0; --dim)
    if (drop[static_cast<std::size_t>(dim)] && call.sizes[static_cast<std::size_t>(dim)] == 1)
      local = local.select(dim, 0);
  stack.resize(stack.size() - count);
  stack.emplace_back(local.alias());  // never the operand's own handle
}

std::optional<Rule> squeeze(const OperatorCall& call) {
  const auto& self = call.operand(0);
  RuleBuilder builder(call);
  auto from = builder.letters(0);
  std::vector<bool> drop(from.size(), call.arguments.size() == 1);
  if (call.arguments.size() == 2 && self.ndim() > 0) {
    const auto& dims = call.argument(1);
    for (auto dim : dims.isInt() ? Sizes{dims.toInt()} : dims.toIntVector()) {
      dim = OperatorCall::wrap_dim(dim, self.ndim());
      if (dim < 0 || dim >= self.ndim()) return std::nullopt;
      drop[static_cast<std::size_t>(dim)] = true;
    }
  }
  std::vector<int> to;
  std::vector<ViewDim> places;
  for (std::size_t dim = 0; dim < from.size(); ++dim)
    if (drop[dim] && self.sizes[dim] == 1) {
      from[dim] = no_factor;
    } else {
      to.push_back(from[dim]);
      places.push_back({static_cast<int>(dim)});
    }
  builder.operand(0, from).result(to).passes_any_pending().kernel(local_squeeze);
  return builder.view_dims(std::move(places)).build();
}

// view_as_real adds a last dimension of size 2, view_as_complex drops it.
std::optional<Rule> view_as_real(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto to = builder.letters(0);
  to.push_back(no_factor);
  return builder.result(to).linear({0}).view().build();
}
std::optional<Rule> view_as_complex(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto to = builder.letters(0);
  if (to.empty()) return std::nullopt;
  builder.at(to.back()).kind = Factor::Kind::whole;
  to.pop_back();
  return builder.result(to).linear({0}).view().build();
}

}  // namespace

void detail::add_view_rules() {
  add_rule("aten::view", view);
  add_rule("aten::_unsafe_view", unsafe_view);
  add_rule("aten::_reshape_alias", reshape_alias);
  add_rule("aten::expand", expand);
  add_rule("aten::permute", permute);
  add_rule("aten::transpose.int", transpose);
  add_rule("aten::t", transpose);
  add_rule("aten::unsqueeze", unsqueeze);
  add_rule("aten::squeeze", squeeze);
  add_rule("aten::squeeze.dim", squeeze);
  add_rule("aten::squeeze.dims", squeeze);
  add_rule("aten::view_as_real", view_as_real);
  add_rule("aten::view_as_complex", view_as_complex);
  // The same with memory of their own.
  add_rule("aten::view_copy", unsafe_view);
  add_rule("aten::_reshape_copy", unsafe_view);
  add_rule("aten::_reshape_alias_copy", copy_of<reshape_alias, local_reshape_alias>);
  add_rule("aten::expand_copy", copy_of<expand>);
  add_rule("aten::permute_copy", copy_of<permute>);
  add_rule("aten::transpose_copy.int", copy_of<transpose>);
  add_rule("aten::t_copy", copy_of<transpose>);
  add_rule("aten::unsqueeze_copy", copy_of<unsqueeze>);
  for (const char* overload : {"", ".dim", ".dims"})
    add_rule(std::string("aten::squeeze_copy") + overload, copy_of<squeeze, local_squeeze>);
  add_rule("aten::view_as_real_copy", copy_of<view_as_real>);
  add_rule("aten::view_as_complex_copy", copy_of<view_as_complex>);
}

}  // namespace dtensor
