// Fourier transforms: the transformed dimensions are whole, the others pass; all are linear.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {
namespace {

// _fft_r2c(self, dim, normalization, onesided), _fft_c2r(self, dim, normalization, last_dim_size), _fft_c2c(...)
std::optional<Rule> transform(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  for (auto dim : call.argument(1).toIntVector()) {
    dim = OperatorCall::wrap_dim(dim, ndim);
    if (dim < 0 || dim >= ndim) return std::nullopt;
    auto& letter = letters[static_cast<std::size_t>(dim)];
    if (letter == no_factor) return std::nullopt;  // named twice
    builder.at(letter).kind = Factor::Kind::whole;
    letter = no_factor;
  }
  return builder.result(letters).linear({0}).build();
}

}  // namespace

void detail::add_fourier_rules() {
  add_rule("aten::_fft_r2c", transform);
  add_rule("aten::_fft_c2r", transform);
  add_rule("aten::_fft_c2c", transform);
}

}  // namespace dtensor
