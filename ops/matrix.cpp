// Matrix products.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <algorithm>

namespace dtensor {
namespace {

std::optional<Rule> product(const OperatorCall& call, const char* einsum) {
  return RuleBuilder(call).einsum(einsum).linear({0}).linear({1}).build();
}
std::optional<Rule> mm(const OperatorCall& call) { return product(call, "mk,kn->mn"); }
std::optional<Rule> bmm(const OperatorCall& call) { return product(call, "bmk,bkn->bmn"); }
std::optional<Rule> mv(const OperatorCall& call) { return product(call, "mk,k->m"); }
std::optional<Rule> dot(const OperatorCall& call) { return product(call, "k,k->"); }

// a [..., m, k] times b [..., k, n] with equal leading dimensions, which pass.
std::optional<Rule> batched_matmul(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto dims = builder.letters(0);
  auto right = dims, out = dims;
  const std::size_t last = dims.size() - 1;
  const int k = dims[last], n = builder.factor();
  builder.at(k).kind = Factor::Kind::reduce;
  right[last - 1] = k;
  right[last] = out[last] = n;
  return builder.operand(1, right).result(out).linear({0}).linear({1}).build();
}

// x [..., k] times w [k, n] -> [..., n], as one operator: folding the leading dimensions of x into one would turn a
// sequence shard into a strided shard. Leading dimensions pass.
std::optional<Rule> matmul(const OperatorCall& call) {
  if (call.operand(0).ndim() >= 3 && call.operand(0).ndim() == call.operand(1).ndim()) return batched_matmul(call);
  if (call.operand(1).ndim() != 2 || call.operand(0).ndim() < 2) return std::nullopt;
  RuleBuilder builder(call);
  auto x = builder.letters(0);
  const int k = x.back(), n = builder.factor();
  builder.at(k).kind = Factor::Kind::reduce;
  builder.operand(1, {k, n});
  x.back() = n;
  return builder.result(x).linear({0}).linear({1}).build();
}

// gradient [..., n], input [..., k] -> [n, k]: summed over the leading dimensions.
std::optional<Rule> weight_gradient(const OperatorCall& call) {
  RuleBuilder builder(call);
  auto gradient = builder.letters(0, Factor::Kind::reduce);
  auto input = gradient;
  const int n = gradient.back(), k = builder.factor();
  builder.at(n).kind = Factor::Kind::pass;
  input.back() = k;
  return builder.operand(1, input).result({n, k}).linear({0}).linear({1}).build();
}

// _trilinear(a, b, c, expand_a, expand_b, expand_c, sumdim, unroll_dim): the product of three tensors, each with new
// dimensions of size 1 where its list says, summed over some dimensions of that common shape.
std::optional<Rule> trilinear(const OperatorCall& call) {
  const auto ndim = static_cast<std::size_t>(call.operand(0).ndim()) + call.argument(3).toIntVector().size();
  const auto contains = [&](std::size_t argument, std::size_t dim) {
    const auto list = call.argument(argument).toIntVector();
    return std::find(list.begin(), list.end(), static_cast<std::int64_t>(dim)) != list.end();
  };
  RuleBuilder builder(call);
  std::vector<int> letters, kept;
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    const bool summed = contains(6, dim);
    letters.push_back(builder.factor(summed ? Factor::Kind::reduce : Factor::Kind::pass));
    if (!summed) kept.push_back(letters.back());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<int> own;
    for (std::size_t dim = 0; dim < ndim; ++dim)
      if (!contains(3 + i, dim)) own.push_back(letters[dim]);
    if (own.size() != call.operand(i).sizes.size()) return std::nullopt;
    for (std::size_t dim = 0; dim < own.size(); ++dim)
      if (call.operand(i).sizes[dim] == 1) own[dim] = no_factor;
    builder.operand(i, own);
  }
  for (auto& letter : kept) {
    const auto& operands = builder.rule().operands;
    if (std::none_of(operands.begin(), operands.end(), [letter](const auto& dims) {
          return std::find(dims.begin(), dims.end(), letter) != dims.end();
        }))
      letter = no_factor;
  }
  return builder.result(kept).linear({0}).linear({1}).linear({2}).build();
}

}  // namespace

void detail::add_matrix_rules() {
  add_rule("aten::mm", mm);
  add_rule("aten::bmm", bmm);
  add_rule("aten::mv", mv);
  add_rule("aten::dot", dot);
  add_rule("aten::vdot", dot);
  add_rule("aten::matmul", matmul);
  add_rule("aten::_trilinear", trilinear);
  add_rule("dtensor::weight_gradient", weight_gradient);
}

}  // namespace dtensor
