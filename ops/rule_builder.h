// RuleBuilder: most operators in one line. Each method says what it adds, with input -> output in factors.
#pragma once

#include "ops/rule.h"

#include <algorithm>
#include <string>

namespace dtensor {

// Letters are given as text: "mk,kn->mn". Upper-case letters are whole; a letter missing on the right is reduced by sum;
// "..." are leading dimensions that broadcast against each other, as in batches of matrices. A star before an operand
// says that the operator is linear in it alone.
//   einsum("mk,kn->mn")          mm
//   einsum("bmk,bkn->bmn")       bmm
//   einsum("*...HW->...HW")      avg_pool2d: any leading dimensions pass, the image is whole, pending sums pass
//   einsum("...MN->...MN,...")   linalg_cholesky_ex: the factor, and one number a matrix
class RuleBuilder {
 public:
  explicit RuleBuilder(const OperatorCall& call) : call_(&call) { rule_.operands.resize(call.operands.size()); }

  // Operands beyond those in the text carry no factors, nor do undefined ones. Errors: internal assert when ranks differ.
  RuleBuilder& einsum(const std::string& text, ReduceOp op = ReduceOp::sum);
  // As einsum; false when the operands' ranks do not fit the text, which leaves the call to the stock operator's checks.
  bool fits(const std::string& text, ReduceOp op = ReduceOp::sum);

  // A new factor.
  int factor(Factor::Kind kind = Factor::Kind::pass, ReduceOp op = ReduceOp::sum);
  // A factor for a part of a flattened or split dimension: sharded only where `size` divides.
  int even_factor(std::int64_t size);

  // Operands broadcast against each other, results have the broadcast shape: add, mul, where, ...
  //   add: ab, b -> ab
  RuleBuilder& pointwise(std::size_t operand_count, std::size_t result_count = 1);

  // The dimensions of one operand / of one more result.
  RuleBuilder& operand(std::size_t index, std::vector<int> dims);
  RuleBuilder& result(std::vector<int> dims);
  RuleBuilder& completed_result(std::vector<int> dims);  // Replicate where a reduced factor is sharded: the kernel reduces
  RuleBuilder& alike_result(std::vector<int> dims);      // the same, with nothing to reduce: every rank has it
  RuleBuilder& sized_result(std::vector<int> dims, std::vector<std::int64_t> sizes);

  // Operands that may be pending together (by position).
  RuleBuilder& linear(std::vector<int> operands);
  RuleBuilder& passes_any_pending();
  RuleBuilder& kernel(LocalKernel kernel);
  RuleBuilder& by_sizes();
  RuleBuilder& view();
  // Where the last result's dimensions lie in operand 0 (ResultRule::view_dims); its sizes then need no decision.
  RuleBuilder& view_dims(std::vector<ViewDim> dims);
  RuleBuilder& list_result();
  RuleBuilder& size_argument(int argument, int result = 0);

  // One factor per dimension of an operand (size-1 dimensions included), all of one kind; also set as its dims.
  std::vector<int> letters(std::size_t operand, Factor::Kind kind = Factor::Kind::pass);
  // As letters(0), with the dimension that argument `dim_argument` names whole; nothing where there is no such dimension.
  std::optional<std::vector<int>> letters_whole_along(std::size_t dim_argument);
  Factor& at(int factor) { return rule_.factors[static_cast<std::size_t>(factor)]; }
  Rule& rule() { return rule_; }
  std::optional<Rule> build() { return std::move(rule_); }

 private:
  const OperatorCall* call_;
  Rule rule_;
};

// A rule that is a line of text: add_rule("aten::mm", by_text<"mk,kn->mn">).
template <std::size_t size>
struct RuleText {
  char value[size];
  constexpr RuleText(const char (&text)[size]) { std::copy(text, text + size, value); }
};
template <RuleText text>
std::optional<Rule> by_text(const OperatorCall& call) {
  RuleBuilder builder(call);
  if (!builder.fits(text.value)) return std::nullopt;
  return builder.build();
}

}  // namespace dtensor
