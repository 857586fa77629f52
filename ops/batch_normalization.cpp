// Normalisation with statistics of the batch. Channels are independent and pass. The batch and the image pass too: where
// the statistics are of the call itself (training), ranks add up their sums; where they are given (evaluation), nothing
// has to meet.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace dtensor {
namespace {

// Letters of an input [n, c, ...]; all but the channels' are of one kind.
std::vector<int> input_letters(RuleBuilder& builder, std::size_t operand, Factor::Kind kind) {
  auto letters = builder.letters(operand, kind);
  builder.at(letters[1]).kind = Factor::Kind::pass;
  return letters;
}

// One number a channel, or an empty tensor.
void channel_operand(RuleBuilder& builder, const OperatorCall& call, std::size_t operand, int channel) {
  if (operand < call.operands.size() && call.operand(operand).defined)
    builder.operand(operand, {call.operand(operand).sizes[0] == 0 ? no_factor : channel});
}

// What the kernels for training share: an operand [n, c, ...] summed over all dimensions but the channels'.
struct Channels {
  const KernelContext& context;
  std::size_t operand;
  std::vector<std::int64_t> summed = {};  // dimensions
  double count = 1;                       // elements a channel, over all ranks
  bool cut = false;                       // a summed dimension is cut

  Channels(const KernelContext& context_, std::size_t operand_) : context(context_), operand(operand_) {
    const auto& sizes = context.operands[operand].sizes;
    for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(sizes.size()); ++dim) {
      if (dim == 1) continue;
      summed.push_back(dim);
      count *= static_cast<double>(sizes[static_cast<std::size_t>(dim)]);
      cut = cut || context.is_cut(operand, dim);
    }
  }
  at::Tensor local_sum(const at::Tensor& x) const { return x.sum(summed); }
  void complete(at::Tensor& sums) const { context.all_reduce(sums, ReduceOp::sum, operand, summed); }
  // One number a channel, to go with [n, c, ...].
  at::Tensor along(const at::Tensor& numbers) const {
    std::vector<std::int64_t> sizes(context.operands[operand].sizes.size(), 1);
    sizes[1] = numbers.numel();
    return numbers.to(wide(numbers.scalar_type())).view(sizes);
  }
};

// The dtype of the statistics that the stock operators return.
at::ScalarType statistics_dtype(const at::Tensor& input, std::initializer_list<at::Tensor> parameters) {
  if (input.is_cuda()) return wide(input.scalar_type());
  for (const auto& parameter : parameters)
    if (parameter.defined()) return parameter.scalar_type();
  return input.scalar_type();
}

void update(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
}

// Training over a cut batch: two all-reduces, of the sum and of the squared distances from the global mean. (A sum of
// squares alone would cancel.) In other cases the stock operator does.
template <std::size_t statistics, int training_argument, int results>
void local_batch_norm(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const bool training =
      training_argument < 0 || stack[base + static_cast<std::size_t>(training_argument)].toBool();
  const auto input = stack[base].toTensor();
  const Channels channels(context, 0);
  if (input.numel() != 0 && (!channels.cut || !training)) return context.call_stock(stack);
  const auto weight = optional_tensor(stack[base + 1]), bias = optional_tensor(stack[base + 2]);
  const auto running_mean = statistics ? optional_tensor(stack[base + 3]) : at::Tensor(),
             running_variance = statistics ? optional_tensor(stack[base + 4]) : at::Tensor();
  const double momentum = stack[stack.size() - 2].toDouble(), epsilon = stack[stack.size() - 1].toDouble();
  const auto dtype = statistics_dtype(input, {weight, bias, running_mean, running_variance});
  stack.resize(base);
  if (!training) {  // an empty part
    const auto numbers = input.is_cuda() ? input.size(1) : 0;
    stack.emplace_back(at::empty_like(input));
    for (int i = 1; i < 3; ++i) stack.emplace_back(at::zeros({numbers}, input.options().dtype(dtype)));
    return;
  }
  const auto x = input.to(wide(input.scalar_type()));
  auto mean = channels.local_sum(x);
  channels.complete(mean);
  mean = mean / channels.count;
  const auto distance = x - channels.along(mean);
  auto squares = channels.local_sum(distance * distance);
  channels.complete(squares);
  const auto inverse_deviation = (squares / channels.count + epsilon).rsqrt();
  auto output = distance * channels.along(inverse_deviation);
  if (weight.defined()) output = output * channels.along(weight);
  if (bias.defined()) output = output + channels.along(bias);
  update(running_mean, mean, momentum);
  update(running_variance, squares / (channels.count - 1), momentum);
  stack.emplace_back(output.to(input.scalar_type()));
  stack.emplace_back(mean.to(dtype));
  stack.emplace_back(inverse_deviation.to(dtype));
  if (results == 4) stack.emplace_back(at::empty({0}, input.options().dtype(at::kByte)));
}

// native_batch_norm(input, weight?, bias?, running_mean?, running_var?, training, momentum, eps) -> (output, mean, inverse
// deviation), the latter two empty in evaluation on a CPU. `statistics`: how many running statistics the form has.
template <std::size_t statistics, int training_argument, int results>
std::optional<Rule> batch_norm(const OperatorCall& call) {
  if (call.operand(0).ndim() < 2) return std::nullopt;
  const bool training =
      training_argument < 0 || call.argument(static_cast<std::size_t>(training_argument)).toBool();
  if (!training && statistics == 0) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = input_letters(builder, 0, Factor::Kind::pass);
  for (std::size_t i = 1; i < 3 + statistics; ++i) channel_operand(builder, call, i, letters[1]);
  builder.result(letters);
  const bool numbers = training || call.mesh->device_type() == at::kCUDA;
  for (int i = 1; i < 3; ++i)
    training ? builder.completed_result({letters[1]}) : builder.alike_result({numbers ? letters[1] : no_factor});
  if (results == 4) builder.alike_result({no_factor});  // room for a GPU's kernel
  return builder.kernel(local_batch_norm<statistics, training_argument, results>).build();
}

// The gradient of the input needs two sums over the batch; those of weight and bias are these sums, left pending.
void local_batch_norm_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto gradient = stack[base].toTensor(), input = stack[base + 1].toTensor();
  const bool training = stack[base + 7].toBool();
  const Channels channels(context, 1);
  if (input.numel() != 0 && (!channels.cut || !training)) return context.call_stock(stack);
  const auto weight = optional_tensor(stack[base + 2]);
  const double epsilon = stack[base + 8].toDouble();
  const auto mask = stack[base + 9].toBoolList();
  const auto mean = optional_tensor(stack[base + (training ? 5 : 3)]);
  const auto inverse_deviation = training
                                     ? optional_tensor(stack[base + 6])
                                     : (optional_tensor(stack[base + 4]).to(at::kDouble) + epsilon).rsqrt();
  const auto dtype = wide(input.scalar_type());
  const auto g = gradient.to(dtype);
  const auto normalized =
      ((input.to(dtype) - channels.along(mean)) * channels.along(inverse_deviation)).to(dtype);
  auto sums = at::stack({channels.local_sum(g), channels.local_sum(g * normalized)});
  const auto parameter_dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
  const auto weight_gradient = mask.get(1) ? sums[1].to(parameter_dtype) : at::Tensor(),
             bias_gradient = mask.get(2) ? sums[0].to(parameter_dtype) : at::Tensor();
  at::Tensor input_gradient;
  if (mask.get(0)) {
    auto whole = sums.clone();
    if (training) channels.complete(whole);
    input_gradient = training ? g - channels.along(whole[0] / channels.count) -
                                    normalized * channels.along(whole[1] / channels.count)
                              : g;
    input_gradient = input_gradient * channels.along(inverse_deviation);
    if (weight.defined()) input_gradient = input_gradient * channels.along(weight);
    input_gradient = input_gradient.to(input.scalar_type());
  }
  stack.resize(base);
  stack.emplace_back(input_gradient);
  stack.emplace_back(weight_gradient.defined() ? weight_gradient.clone() : weight_gradient);
  stack.emplace_back(bias_gradient.defined() ? bias_gradient.clone() : bias_gradient);
}

// native_batch_norm_backward(grad, input, weight?, running_mean?, running_var?, mean?, inverse deviation?, training, eps,
// mask) -> (of input, of weight, of bias)
std::optional<Rule> batch_norm_backward(const OperatorCall& call) {
  if (call.operand(1).ndim() < 2) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = input_letters(builder, 1, Factor::Kind::reduce);
  builder.operand(0, letters);
  for (std::size_t i = 2; i < 7; ++i) channel_operand(builder, call, i, letters[1]);
  builder.result(letters).result({letters[1]}).result({letters[1]}).linear({0});
  const auto mask = call.argument(9).toBoolList();
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.by_sizes().kernel(local_batch_norm_backward).build();
}

}  // namespace

void detail::add_batch_normalization_rules() {
  add_rule("aten::native_batch_norm", batch_norm<2, 5, 3>);
  add_rule("aten::_native_batch_norm_legit", batch_norm<2, 5, 3>);
  add_rule("aten::_native_batch_norm_legit.no_stats", batch_norm<0, 3, 3>);
  add_rule("aten::_batch_norm_with_update", batch_norm<2, -1, 4>);
  add_rule("aten::native_batch_norm_backward", batch_norm_backward);
}

}  // namespace dtensor
