// A tensor plus a product: addmv, addbmm, baddbmm, addr. Where the dimension that the product sums over is cut, each rank
// has a part of the product, the results are pending, and the first rank alone adds the tensor.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <vector>

namespace dtensor {
namespace {

// add...(self, a, b, *, beta, alpha); `summed`: the dimensions of `a` that the product sums over.
template <std::int64_t... summed>
void local_added_product(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  bool first = true;
  for (const std::int64_t dim : {summed...})
    for (const int mesh_dim : context.layout(1)->mesh_dims_cutting(dim))
      first = first && context.coordinate()[static_cast<std::size_t>(mesh_dim)] == 0;
  if (!first) stack[base + 3] = 0;  // beta
  const auto a = stack[base + 1].toTensor(), b = stack[base + 2].toTensor();
  if (a.numel() != 0 && b.numel() != 0) return context.call_stock(stack);
  // Stock operators differ in what an empty product of a broadcast tensor is.
  std::vector<std::int64_t> sizes;
  for (std::int64_t dim = 0; dim < a.dim(); ++dim)
    if (((dim != summed) && ...)) sizes.push_back(a.size(dim));
  if (b.dim() > 1) sizes.push_back(b.size(-1));
  auto result = at::zeros(sizes, a.options());
  const auto beta = stack[base + 3].toScalar();
  if (!beta.equal(0)) result.add_(stack[base].toTensor(), beta);
  stack.resize(base);
  stack.emplace_back(std::move(result));
}

// `product` tells operands 1 and 2 and the result; self broadcasts to the result.
std::optional<Rule> added(const OperatorCall& call, const std::string& product, LocalKernel kernel) {
  const auto out = product.substr(product.find("->") + 2);
  const auto self_ndim = static_cast<std::size_t>(call.operand(0).ndim());
  if (self_ndim > out.size()) return std::nullopt;
  RuleBuilder builder(call);
  if (!builder.fits(out.substr(out.size() - self_ndim) + "," + product)) return std::nullopt;
  auto self = builder.rule().operands[0];
  for (std::size_t dim = 0; dim < self.size(); ++dim)
    if (call.operand(0).sizes[dim] == 1) self[dim] = no_factor;
  return builder.operand(0, self).kernel(kernel).build();
}
std::optional<Rule> addmv(const OperatorCall& call) { return added(call, "mk,k->m", local_added_product<1>); }
std::optional<Rule> addr(const OperatorCall& call) { return added(call, "m,n->mn", nullptr); }
std::optional<Rule> addbmm(const OperatorCall& call) { return added(call, "bmk,bkn->mn", local_added_product<0, 2>); }
std::optional<Rule> baddbmm(const OperatorCall& call) { return added(call, "bmk,bkn->bmn", local_added_product<2>); }

}  // namespace

void detail::add_added_product_rules() {
  add_rule("aten::addmv", addmv);
  add_rule("aten::addr", addr);
  add_rule("aten::addbmm", addbmm);
  add_rule("aten::baddbmm", baddbmm);
}

}  // namespace dtensor
