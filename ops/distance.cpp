// Distances between the rows of two matrices: rows of either may be cut, the coordinates are whole.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {
namespace {

// renorm(self, p, dim, maxnorm): each slice along `dim` by itself, of all other dimensions.
std::optional<Rule> renorm(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim(), dim = OperatorCall::wrap_dim(call.argument(2).toInt(), ndim);
  if (ndim == 0 || dim < 0 || dim >= ndim) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(0, Factor::Kind::whole);
  builder.at(letters[static_cast<std::size_t>(dim)]).kind = Factor::Kind::pass;
  return builder.result(letters).build();
}

}  // namespace

void detail::add_distance_rules() {
  add_rule("aten::_cdist_forward", by_text<"...rM,...pM->...rp">);
  // (grad, x1, x2, p, cdist) -> gradient of x1, summed over the rows of x2
  add_rule("aten::_cdist_backward", by_text<"*...rp,...rM,...pM,...rp->...rM">);
  add_rule("aten::_euclidean_dist", by_text<"...rM,...pM->...rp">);
  add_rule("aten::renorm", renorm);
}

}  // namespace dtensor
