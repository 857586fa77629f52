// Linear algebra: leading (batch) dimensions pass, matrices are whole. Columns of right-hand sides pass where each is solved
// for by itself. Matrices that may be cut, because an element needs only its place: tril, triu, trace.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace dtensor {
namespace {

bool boolean(const OperatorCall& call, std::size_t argument) { return call.argument(argument).toBool(); }

// A rule by text; the results whose flag is false are empty tensors [0], the same on every rank.
std::optional<Rule> with_empty_results(const OperatorCall& call, const char* text,
                                       const std::vector<bool>& present) {
  RuleBuilder builder(call);
  if (!builder.fits(text)) return std::nullopt;
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (present[i]) continue;
    builder.rule().results[i].dims = {no_factor};
    builder.rule().results[i].completed = builder.rule().results[i].alike = true;
  }
  return builder.build();
}

// _linalg_eigh(A, UPLO, compute_v) -> (eigenvalues, eigenvectors)
std::optional<Rule> eigh(const OperatorCall& call) {
  return with_empty_results(call, "...MN->...M,...MN", {true, boolean(call, 2)});
}
// _linalg_svd(A, full_matrices, compute_uv, *, driver) -> (U, S, Vh)
std::optional<Rule> svd(const OperatorCall& call) {
  return with_empty_results(call, "...MN->...MK,...K,...KN", {boolean(call, 2), true, boolean(call, 2)});
}
// linalg_qr(A, mode) -> (Q, R)
std::optional<Rule> qr(const OperatorCall& call) {
  return with_empty_results(call, "...MN->...MK,...KN", {call.argument(1).toStringRef() != "r", true});
}
// linalg_lu(A, *, pivot) -> (P, L, U)
std::optional<Rule> lu(const OperatorCall& call) {
  return with_empty_results(call, "...MN->...MP,...MK,...KN", {boolean(call, 1), true, true});
}
// lu_unpack(LU, pivots, unpack_data, unpack_pivots) -> (P, L, U)
std::optional<Rule> lu_unpack(const OperatorCall& call) {
  return with_empty_results(call, "...MN,...K->...MP,...MK,...KN",
                            {boolean(call, 3), boolean(call, 2), boolean(call, 2)});
}

std::optional<Rule> text(const OperatorCall& call, const char* rule) {
  RuleBuilder builder(call);
  if (!builder.fits(rule)) return std::nullopt;
  return builder.build();
}
// linalg_lu_solve(LU, pivots, B, *, left, adjoint)
std::optional<Rule> lu_solve(const OperatorCall& call) {
  return text(call, boolean(call, 3) ? "...MN,...M,*...Mk->...Mk" : "...MN,...M,*...kM->...kM");
}
// linalg_solve_triangular(A, B, *, upper, left, unitriangular)
std::optional<Rule> solve_triangular(const OperatorCall& call) {
  return text(call, boolean(call, 3) ? "...MN,*...Mk->...Mk" : "...MN,*...kM->...kM");
}

// _linalg_solve_ex(A, B, *, left, check_errors) -> (result, LU, pivots, info). LU has the batch dimensions of A alone, so
// they must be B's as well. Columns of B pass: the ranks that share them factorise alike.
std::optional<Rule> solve(const OperatorCall& call) {
  const auto &a = call.operand(0), &b = call.operand(1);
  const bool vector =
      b.ndim() == 1 || (a.ndim() == b.ndim() + 1 && b.sizes == a.sizes.slice(0, a.sizes.size() - 1));
  const auto batch = static_cast<std::size_t>(std::max<std::int64_t>(a.ndim() - 2, 0));
  if (b.sizes.size() != batch + (vector ? 1 : 2) || a.sizes.slice(0, batch) != b.sizes.slice(0, batch))
    return std::nullopt;
  if (vector) return text(call, "...MN,...M->...M,...MN,...M,...");
  RuleBuilder builder(call);
  const char* columns = boolean(call, 2) ? "...MN,...Mk->...Mk,...MN,...M,..." : "...MN,...kM->...kM,...MN,...M,...";
  if (!builder.fits(columns)) return std::nullopt;
  for (std::size_t i = 1; i < 4; ++i) builder.rule().results[i].completed = builder.rule().results[i].alike = true;
  return builder.build();
}

// _linalg_check_errors(info, name, *, is_matrix): every rank looks at all of the (few) numbers, so that all throw alike.
std::optional<Rule> check_errors(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.letters(0, Factor::Kind::whole);
  return builder.build();
}

// linalg_cross(self, other, *, dim)
std::optional<Rule> cross(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.pointwise(2);
  const auto out = builder.rule().results[0].dims;
  const auto dim = OperatorCall::wrap_dim(call.argument(2).toInt(), static_cast<std::int64_t>(out.size()));
  if (dim < 0 || dim >= static_cast<std::int64_t>(out.size())) return std::nullopt;
  builder.at(out[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  return builder.linear({0}).linear({1}).build();
}

bool any_interleaved(const OperatorCall& call) {
  for (int mesh_dim = 0; mesh_dim < call.mesh->ndim(); ++mesh_dim)
    if (call.operand(0).placement(mesh_dim).is_interleaved()) return true;
  return false;
}

// By how much the diagonal of the global matrix lies above that of this rank's part.
std::int64_t diagonal_shift(const KernelContext& context) {
  const auto ndim = context.operands[0].ndim();
  const auto offset = [&](std::int64_t dim) {
    const auto intervals = context.intervals(0, dim);
    return intervals.empty() ? 0 : intervals.front().offset;
  };
  return offset(ndim - 2) - offset(ndim - 1);
}

// tril(self, diagonal), triu: rows and columns may be cut, the diagonal moves with them.
void local_triangle(const KernelContext& context, std::vector<c10::IValue>& stack) {
  auto& diagonal = stack[stack.size() - 1];
  diagonal = diagonal.toInt() + diagonal_shift(context);
  context.call_stock(stack);
}
std::optional<Rule> triangle(const OperatorCall& call) {
  if (call.operand(0).ndim() < 2 || any_interleaved(call)) return std::nullopt;
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).linear({0}).kernel(local_triangle).build();
}

// trace(self): pending, each rank sums what it holds of the diagonal.
void local_trace(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto self = stack.back().toTensor();
  const auto shift = diagonal_shift(context);
  const bool holds = shift < self.size(1) && -shift < self.size(0);
  stack.back() = holds ? self.diagonal(shift).sum() : self.flatten().narrow(0, 0, 0).sum();
}
std::optional<Rule> trace(const OperatorCall& call) {
  if (call.operand(0).ndim() != 2 || any_interleaved(call)) return std::nullopt;
  RuleBuilder builder(call);
  builder.letters(0, Factor::Kind::reduce);
  return builder.result({}).linear({0}).kernel(local_trace).build();
}

}  // namespace

void detail::add_linear_algebra_rules() {
  add_rule("aten::linalg_cholesky_ex", by_text<"...MN->...MN,...">);
  add_rule("aten::cholesky_inverse", by_text<"...MN->...MN">);
  add_rule("aten::cholesky_solve", by_text<"*...Mk,...MN->...Mk">);
  add_rule("aten::linalg_inv_ex", by_text<"...MN->...MN,...">);
  add_rule("aten::_linalg_det", by_text<"...MN->...,...MN,...M">);
  add_rule("aten::_linalg_slogdet", by_text<"...MN->...,...,...MN,...M">);
  add_rule("aten::_linalg_eigh", eigh);
  add_rule("aten::linalg_eig", by_text<"...MN->...M,...MN">);
  add_rule("aten::_linalg_eigvals", by_text<"...MN->...M">);
  add_rule("aten::linalg_qr", qr);
  add_rule("aten::_linalg_svd", svd);
  add_rule("aten::linalg_lu", lu);
  add_rule("aten::linalg_lu_factor_ex", by_text<"...MN->...MN,...K,...">);
  add_rule("aten::lu_unpack", lu_unpack);
  add_rule("aten::linalg_lu_solve", lu_solve);
  add_rule("aten::_linalg_solve_ex", solve);
  add_rule("aten::linalg_solve_triangular", solve_triangular);
  add_rule("aten::triangular_solve", by_text<"...MK,...MN->...MK,...MN">);
  add_rule("aten::linalg_ldl_factor_ex", by_text<"...MN->...MN,...M,...">);
  add_rule("aten::linalg_ldl_solve", by_text<"...MN,...M,*...Mk->...Mk">);
  add_rule("aten::linalg_matrix_exp", by_text<"...MN->...MN">);
  add_rule("aten::linalg_householder_product", by_text<"...MN,...K->...MN">);
  add_rule("aten::ormqr", by_text<"...MN,...K,*...PQ->...PQ">);
  add_rule("aten::geqrf", by_text<"...MN->...MN,...K">);
  add_rule("aten::_linalg_check_errors", check_errors);
  add_rule("aten::linalg_cross", cross);
  add_rule("aten::tril", triangle);
  add_rule("aten::triu", triangle);
  add_rule("aten::trace", trace);
}

}  // namespace dtensor
