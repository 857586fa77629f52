// Convolution: the batch and the output channels pass; the image is whole (no halo exchange), and so are the input channels.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

namespace dtensor {
namespace {

// Letters [first, second, spatial...], the spatial ones whole and new.
std::vector<int> image(RuleBuilder& builder, int first, int second, std::int64_t ndim) {
  std::vector<int> letters = {first, second};
  for (std::int64_t dim = 2; dim < ndim; ++dim) letters.push_back(builder.factor(Factor::Kind::whole));
  return letters;
}

// convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
//   input [n, c, ...], weight [o, c, ...] (transposed: [c, o, ...]), bias [o] -> [n, o, ...]
std::optional<Rule> convolution(const OperatorCall& call) {
  const auto &input = call.operand(0), &weight = call.operand(1);
  if (input.ndim() < 3 || weight.ndim() != input.ndim()) return std::nullopt;
  RuleBuilder builder(call);
  const bool transposed = call.argument(6).toBool(), grouped = call.argument(8).toInt() != 1,
             biased = call.operand(2).defined;
  const int n = builder.factor(), c = builder.factor(Factor::Kind::whole);
  // A group's output channels see its input channels alone: channels of groups are whole.
  const int o = grouped ? no_factor : builder.factor();
  const int weight_c = grouped ? no_factor : c;  // [c / groups]
  builder.operand(0, image(builder, n, c, input.ndim()));
  builder.operand(1, transposed ? image(builder, weight_c, o, weight.ndim())
                                : image(builder, o, weight_c, weight.ndim()));
  if (biased) builder.operand(2, {o});
  std::vector<int> out(static_cast<std::size_t>(input.ndim()), no_factor);
  out[0] = n;
  out[1] = o;
  builder.result(out);
  if (!biased) builder.linear({0}).linear({1});
  return builder.build();
}

// A rank without rows or output channels adds nothing; the stock kernels refuse empty weights.
void local_convolution_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - 11;
  const auto gradient = stack[base].toTensor(), input = stack[base + 1].toTensor(), weight = stack[base + 2].toTensor();
  if (gradient.numel() != 0 && input.numel() != 0 && weight.numel() != 0) return context.call_stock(stack);
  const auto mask = stack[base + 10].toBoolList();
  const std::vector<at::Tensor> zeros = {at::zeros_like(input), at::zeros_like(weight),
                                         at::zeros({gradient.size(1)}, gradient.options())};
  stack.resize(base);
  for (std::size_t i = 0; i < 3; ++i) stack.emplace_back(mask.get(i) ? zeros[i] : at::Tensor());
}

// convolution_backward(grad, input, weight, bias_sizes?, stride, padding, dilation, transposed, output_padding, groups, mask)
//   -> (of input, of weight, of bias). Summed over the batch for weight and bias, over the output channels for the input.
std::optional<Rule> convolution_backward(const OperatorCall& call) {
  const auto &input = call.operand(1), &weight = call.operand(2);
  const auto ndim = input.ndim();
  if (ndim < 3 || weight.ndim() != ndim || call.operand(0).ndim() != ndim) return std::nullopt;
  RuleBuilder builder(call);
  const bool transposed = call.argument(7).toBool(), grouped = call.argument(9).toInt() != 1;
  const auto mask = call.argument(10).toBoolList();
  const int n = builder.factor(Factor::Kind::reduce), c = builder.factor(Factor::Kind::whole);
  const int o = grouped ? no_factor : builder.factor(Factor::Kind::reduce);
  const int weight_c = grouped ? no_factor : c;
  const auto input_letters = image(builder, n, c, ndim);
  const auto weight_letters =
      transposed ? image(builder, weight_c, o, ndim) : image(builder, o, weight_c, ndim);
  builder.operand(0, image(builder, n, o, ndim)).operand(1, input_letters).operand(2, weight_letters);
  builder.sized_result(input_letters, input.sizes.vec()).sized_result(weight_letters, weight.sizes.vec());
  const auto channels = call.operand(0).sizes[1];
  builder.sized_result({o}, {channels});
  if (!call.argument(3).isNone()) builder.size_argument(3, 2);
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.linear({0}).by_sizes().kernel(local_convolution_backward).build();
}

}  // namespace

void detail::add_convolution_rules() {
  add_rule("aten::convolution", convolution);
  add_rule("aten::convolution_backward", convolution_backward);
}

}  // namespace dtensor
