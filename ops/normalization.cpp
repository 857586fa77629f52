// Layer norm and RMS norm: leading dimensions pass, normalised ones are whole.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {
namespace {

struct NormLetters {
  std::vector<int> input;        // leading letters, then whole letters
  std::vector<int> statistics;   // leading letters, then size-1 dimensions
  std::vector<int> weight;       // the whole letters
};

NormLetters letters(RuleBuilder& builder, std::size_t input, std::int64_t ndim, std::int64_t normalized,
                    Factor::Kind leading) {
  NormLetters result;
  for (std::int64_t dim = 0; dim < ndim; ++dim) {
    const bool whole = dim >= ndim - normalized;
    const int factor = builder.factor(whole ? Factor::Kind::whole : leading);
    result.input.push_back(factor);
    result.statistics.push_back(whole ? no_factor : factor);
    if (whole) result.weight.push_back(factor);
  }
  builder.operand(input, result.input);
  return result;
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
// _fused_rms_norm(input, normalized_shape, weight?, eps) -> (out, rstd)
template <int statistics>
std::optional<Rule> norm(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto normalized = static_cast<std::int64_t>(call.argument(1).toIntVector().size());
  if (normalized > call.operand(0).ndim()) return std::nullopt;
  const auto names = letters(builder, 0, call.operand(0).ndim(), normalized, Factor::Kind::pass);
  for (std::size_t i = 1; i < call.operands.size(); ++i)
    if (call.operand(i).defined) builder.operand(i, names.weight);
  builder.result(names.input);
  for (int i = 0; i < statistics; ++i) builder.result(names.statistics);
  return builder.build();
}

// native_layer_norm_backward(grad, input, shape, mean, rstd, weight?, bias?, mask) -> (input, weight, bias)
// Linear in the gradient; the weight's and bias's gradients are summed over the leading dimensions.
std::optional<Rule> layer_norm_backward(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto normalized = static_cast<std::int64_t>(call.argument(2).toIntVector().size());
  const auto names = letters(builder, 1, call.operand(1).ndim(), normalized, Factor::Kind::reduce);
  builder.operand(0, names.input).operand(2, names.statistics).operand(3, names.statistics);
  for (std::size_t i = 4; i < 6; ++i)
    if (call.operand(i).defined) builder.operand(i, names.weight);
  builder.result(names.input).result(names.weight).result(names.weight).linear({0});
  const auto mask = call.argument(7).toBoolList();
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask[i];
  return builder.build();
}

// _fused_rms_norm_backward(grad, input, shape, rstd, weight?, mask) -> (input, weight)
std::optional<Rule> rms_norm_backward(const OperatorCall& call) {
  RuleBuilder builder(call);
  const auto normalized = static_cast<std::int64_t>(call.argument(2).toIntVector().size());
  const auto names = letters(builder, 1, call.operand(1).ndim(), normalized, Factor::Kind::reduce);
  builder.operand(0, names.input).operand(2, names.statistics);
  if (call.operand(3).defined) builder.operand(3, names.weight);
  builder.result(names.input).result(names.weight).linear({0});
  const auto mask = call.argument(5).toBoolList();
  for (std::size_t i = 0; i < 2; ++i) builder.rule().results[i].defined = mask[i];
  return builder.build();
}

}  // namespace

void detail::add_normalization_rules() {
  add_rule("aten::native_layer_norm", norm<2>);
  add_rule("aten::native_layer_norm_backward", layer_norm_backward);
  add_rule("aten::_fused_rms_norm", norm<1>);
  add_rule("aten::_fused_rms_norm_backward", rms_norm_backward);
}

}  // namespace dtensor
