// Sorting, selecting by rank, and scans along one dimension. Sorting needs that dimension whole; a sum, product or
// logarithm of a sum is scanned where it is cut: each rank scans its piece and adds what the pieces before it came to.
#include "ops/kernel_context.h"
#include "ops/reduced_dims.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

namespace dtensor {
namespace {

// sort(self, dim, descending), sort.stable(self, *, stable, dim, descending), cummax(self, dim): values and
// indices, both like self; `dim` is whole, the others pass.
template <int dim_argument>
std::optional<Rule> sorted_along(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto letters = builder.letters_whole_along(dim_argument);
  if (!letters) return std::nullopt;
  return builder.result(*letters).result(*letters).build();
}

// topk(self, k, dim, largest, sorted): as sorted_along, with a result dimension of its own size.
std::optional<Rule> topk(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto letters = builder.letters_whole_along(2);
  if (!letters) return std::nullopt;
  if (!letters->empty())
    (*letters)[static_cast<std::size_t>(
        OperatorCall::wrap_dim(call.argument(2).toInt(), call.operand(0).ndim()))] = no_factor;
  return builder.result(*letters).result(*letters).build();
}

// median.dim(self, dim, keepdim), mode(self, dim, keepdim), kthvalue(self, k, dim, keepdim): values and indices without
// `dim`, which is whole.
template <int dim_argument>
std::optional<Rule> selected_along(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim(),
             dim = OperatorCall::wrap_dim(call.argument(dim_argument).toInt(), ndim);
  if (dim < 0 || dim >= std::max<std::int64_t>(ndim, 1)) return std::nullopt;
  auto shape = reduction_shape(call, &call.argument(dim_argument), flag_argument(call, dim_argument + 1),
                               Factor::Kind::whole, ReduceOp::sum);
  return shape.builder.result(shape.kept).result(shape.kept).build();
}

// What a scan adds up by.
enum class Scan { sum, product, logarithm };

// The pieces' totals, stacked in a first dimension, as one.
template <Scan scan>
at::Tensor combined(const at::Tensor& totals) {
  if (scan == Scan::sum) return totals.sum(0);
  if (scan == Scan::product) return totals.prod(0);
  return totals.logsumexp(0);
}

template <Scan scan>
void local_scan(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto ndim = context.operands[0].ndim();
  const auto dim = OperatorCall::wrap_dim(context.global_arguments[1].toInt(), ndim);
  context.call_stock(stack);
  if (ndim == 0 || !context.is_cut(0, dim)) return;
  auto local = stack[base].toTensor();  // its own memory, or what the in-place form wrote
  const auto size = local.size(dim);
  auto sizes = local.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = 1;
  const double identity = scan == Scan::sum       ? 0.0
                          : scan == Scan::product ? 1.0
                                                  : -std::numeric_limits<double>::infinity();
  const auto total = size > 0 ? local.narrow(dim, size - 1, 1) : at::full(sizes, identity, local.options());
  const auto totals = context.gather_pieces(total.to(wide(local.scalar_type())), 0, dim);
  const auto piece = context.piece(0, dim);
  if (piece == 0 || local.numel() == 0) return;
  const auto before = combined<scan>(totals.narrow(0, 0, piece));
  local.copy_(scan == Scan::sum       ? local + before
              : scan == Scan::product ? local * before
                                      : at::logaddexp(local, before));
}

// cumsum(self, dim, *, dtype), cumprod, logcumsumexp(self, dim): every dimension passes, but interleaved pieces of
// `dim`, which are not in the order of their indices. A sum is linear, unless it is cast to integers.
template <Scan scan>
std::optional<Rule> scanned(const OperatorCall& call) {
  const auto& self = call.operand(0);
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  const auto dim = OperatorCall::wrap_dim(call.argument(1).toInt(), self.ndim());
  if (dim < 0 || dim >= std::max<std::int64_t>(self.ndim(), 1)) return std::nullopt;
  bool in_order = scan != Scan::logarithm || !c10::isComplexType(self.dtype);
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim)
    if (const auto placement = self.placement(mesh_dim); placement.is_interleaved() && placement.dim() == dim)
      in_order = false;
  if (!in_order && !letters.empty())
    builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  if (scan == Scan::sum) {
    const auto& dtype = call.argument(2);
    if (dtype.isNone() || !c10::isIntegralType(dtype.toScalarType(), true)) builder.linear({0});
  }
  return builder.result(letters).kernel(local_scan<scan>).build();
}

}  // namespace

void detail::add_sorting_rules() {
  add_rule("aten::sort", sorted_along<1>);
  add_rule("aten::sort.stable", sorted_along<2>);
  add_rule("aten::cummax", sorted_along<1>);
  add_rule("aten::cummin", sorted_along<1>);
  add_rule("aten::topk", topk);
  add_rule("aten::kthvalue", selected_along<2>);
  add_rule("aten::median.dim", selected_along<1>);
  add_rule("aten::nanmedian.dim", selected_along<1>);
  add_rule("aten::mode", selected_along<1>);
  add_rule("aten::cumsum", scanned<Scan::sum>);
  add_rule("aten::cumprod", scanned<Scan::product>);
  add_rule("aten::logcumsumexp", scanned<Scan::logarithm>);
}

}  // namespace dtensor
