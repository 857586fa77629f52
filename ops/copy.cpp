// Operators that carry values as they are: clone, casts, copy_, detach, read-out.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {
namespace {

std::optional<Rule> clone(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).passes_any_pending().build();
}

// A cast between floating types commutes with every reduction up to rounding; a cast to an integer does not commute with
// sum (0.5 + 0.5), so a pending value is reduced first.
std::optional<Rule> cast(const OperatorCall& call) {
  RuleBuilder builder(call);
  builder.result(builder.letters(0));
  const auto from = call.operand(0).dtype;
  const auto to = call.argument(1).isNone() ? from : call.argument(1).toScalarType();
  if (from == to || (c10::isFloatingType(from) && (c10::isFloatingType(to) || c10::isComplexType(to))) ||
      (c10::isComplexType(from) && c10::isComplexType(to)))
    builder.passes_any_pending();
  return builder.build();
}

std::optional<Rule> alias(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).passes_any_pending().view().build();
}

// Negation and conjugation, told by a bit: values change, so of the reductions only sums and averages pass.
std::optional<Rule> linear_view(const OperatorCall& call) {
  RuleBuilder builder(call);
  return builder.result(builder.letters(0)).linear({0}).view().build();
}

// copy_(self, source): source broadcasts to self. A pending self takes a pending source.
std::optional<Rule> copy_into(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(2).linear({0, 1}).build();
}

// Read-outs to the host: every rank needs the whole value, so that all take the same branch.
std::optional<Rule> whole(const OperatorCall& call) {
  RuleBuilder builder(call);
  for (std::size_t i = 0; i < call.operands.size(); ++i) builder.letters(i, Factor::Kind::whole);
  return builder.build();
}

}  // namespace

void detail::add_copy_rules() {
  add_rule("aten::clone", clone);
  add_rule("aten::_to_copy", cast);
  add_rule("aten::detach", alias);
  add_rule("aten::detach_", alias);
  add_rule("aten::alias", alias);
  add_rule("aten::lift_fresh", alias);
  add_rule("aten::_conj", linear_view);
  add_rule("aten::_neg_view", linear_view);
  add_rule("aten::copy_", copy_into);
  add_rule("aten::_local_scalar_dense", whole);
  add_rule("aten::equal", whole);
}

}  // namespace dtensor
