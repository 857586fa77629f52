// The softmax family: the softmax dimension is whole, the others pass.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {
namespace {

std::optional<Rule> along(const OperatorCall& call, std::size_t dim_argument, std::size_t operands) {
  RuleBuilder builder(call);
  const auto letters = builder.letters_whole_along(dim_argument);
  if (!letters) return std::nullopt;
  for (std::size_t i = 1; i < operands; ++i) builder.operand(i, *letters);
  builder.result(*letters);
  if (operands == 2) builder.linear({0});  // backward formulas are linear in the gradient
  return builder.build();
}

// _softmax(self, dim, half_to_float)
std::optional<Rule> forward(const OperatorCall& call) { return along(call, 1, 1); }
// _softmax_backward_data(grad, output, dim, dtype)
std::optional<Rule> backward(const OperatorCall& call) { return along(call, 2, 2); }

}  // namespace

void detail::add_softmax_rules() {
  add_rule("aten::_softmax", forward);
  add_rule("aten::_log_softmax", forward);
  add_rule("aten::_safe_softmax", forward);
  add_rule("aten::_softmax_backward_data", backward);
  add_rule("aten::_log_softmax_backward_data", backward);
}

}  // namespace dtensor
