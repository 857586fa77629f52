// Convolution: the batch and the output channels pass, input channels are summed over, groups pass where they are cut
// evenly. An image that is cut stays cut: each rank fetches the rows that its rows of the output read besides its own. The
// image of a transposed convolution is whole.
#include "ops/halo.h"
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace dtensor {
namespace {

using Sizes = std::vector<std::int64_t>;

// Letters [first, second, spatial...]; the spatial ones those of `cuts` where it has one, else whole and new.
std::vector<int> image(RuleBuilder& builder, int first, int second, std::vector<int> cuts) {
  cuts[0] = first;
  cuts[1] = second;
  for (std::size_t dim = 2; dim < cuts.size(); ++dim)
    if (cuts[dim] == no_factor) cuts[dim] = builder.factor(Factor::Kind::whole);
  return cuts;
}
std::vector<int> no_cuts(std::int64_t ndim) { return std::vector<int>(static_cast<std::size_t>(ndim), no_factor); }
// The spatial dimensions that stay cut, one letter each for input and output.
std::vector<int> cut_dims(RuleBuilder& builder, bool transposed, const Operand& input, const Operand& output,
                          Factor::Kind kind) {
  auto letters = no_cuts(input.ndim());
  for (std::int64_t dim = 2; dim < input.ndim() && !transposed; ++dim) {
    if (!input.is_cut(dim) && !output.is_cut(dim)) continue;
    letters[static_cast<std::size_t>(dim)] = builder.factor(kind);
    builder.at(letters[static_cast<std::size_t>(dim)]).halo = true;
  }
  return letters;
}

// The letters of a convolution without groups: input [n, c, ...], weight [o, c, ...] (transposed: [c, o, ...]), output
// [n, o, ...]. With groups: input [n, g, ...], weight [g, whole, ...], output [n, g, ...], where a g is a dimension that
// holds the groups one after the other.
struct ChannelLetters {
  int in, out, weight_first, weight_second;
};
ChannelLetters channel_letters(RuleBuilder& builder, std::int64_t groups, bool transposed, Factor::Kind out_kind) {
  if (groups != 1) {
    const int g = builder.even_factor(groups);
    return {g, g, g, no_factor};
  }
  const int c = builder.factor(Factor::Kind::reduce), o = builder.factor(out_kind);
  return transposed ? ChannelLetters{c, o, c, o} : ChannelLetters{c, o, o, c};
}

// The sizes of the output. `arguments`: stride, padding, dilation, transposed, output_padding, groups.
Sizes output_sizes(const c10::IValue* arguments, c10::IntArrayRef input, c10::IntArrayRef weight) {
  const Sizes stride = arguments[0].toIntVector(), padding = arguments[1].toIntVector(),
              dilation = arguments[2].toIntVector(), output_padding = arguments[4].toIntVector();
  const bool transposed = arguments[3].toBool();
  Sizes sizes = {input[0], transposed ? weight[1] * arguments[5].toInt() : weight[0]};
  for (std::size_t dim = 2; dim < input.size(); ++dim) {
    // One number stands for all dimensions.
    const auto of = [dim](const Sizes& list) { return list.size() == 1 ? list[0] : list.at(dim - 2); };
    const auto reach = of(dilation) * (weight[dim] - 1);
    sizes.push_back(transposed ? (input[dim] - 1) * of(stride) - 2 * of(padding) + reach + of(output_padding) + 1
                               : (input[dim] + 2 * of(padding) - reach - 1) / of(stride) + 1);
  }
  return sizes;
}

// Whether the sizes of a convolution with groups agree; others are left to the stock operator's checks.
bool groups_fit(std::int64_t groups, bool transposed, c10::IntArrayRef input, c10::IntArrayRef weight) {
  return groups > 0 && input[1] > 0 && weight[0] > 0 && weight[0] % groups == 0 && input[1] % groups == 0 &&
         input[1] == (transposed ? weight[0] : weight[1] * groups);
}

// Whether this rank is not the first among those whose parts of the input channels add up.
bool adds_to_others(const KernelContext& context, std::size_t input) {
  for (int mesh_dim = 0; mesh_dim < context.layout(input)->mesh_ndim(); ++mesh_dim) {
    const auto& placement = context.layout(input)->placement(mesh_dim);
    if (placement.is_sharded() && placement.dim() == 1 && context.coordinate()[static_cast<std::size_t>(mesh_dim)] != 0)
      return true;
  }
  return false;
}

// Whether an operand is pending by a sum of which this is not the first rank.
bool adds_pending(const KernelContext& context, std::size_t operand) {
  for (int mesh_dim = 0; mesh_dim < context.layout(operand)->mesh_ndim(); ++mesh_dim) {
    const auto& placement = context.layout(operand)->placement(mesh_dim);
    if (placement.is_partial() && placement.reduce_op() == ReduceOp::sum &&
        context.coordinate()[static_cast<std::size_t>(mesh_dim)] != 0)
      return true;
  }
  return false;
}

// The groups of this rank.
std::int64_t local_groups(std::int64_t groups, std::int64_t local_channels, std::int64_t channels) {
  return groups == 1 ? 1 : groups * local_channels / channels;
}

// The rows that one cut dimension of the output reads of the input: fetched, with the padding made of zeros.
struct ImageRows {
  std::int64_t dim;
  HaloExchange exchange;
  std::int64_t front = 0, back = 0;  // rows of padding on this rank

  at::Tensor fetch(const at::Tensor& piece) const {
    std::vector<std::int64_t> padding(static_cast<std::size_t>(2 * (piece.dim() - dim)), 0);  // from the last dimension on
    padding[padding.size() - 2] = front;
    padding[padding.size() - 1] = back;
    return at::constant_pad_nd(exchange.fetch(piece), padding);
  }
  at::Tensor give_back(const at::Tensor& rows) const {
    return exchange.give_back(rows.narrow(dim, front, rows.size(dim) - front - back));
  }
};
// Of each dimension in which `input` is cut. `arguments`: stride, padding, dilation; the padding is changed to that which
// remains for the stock operator to add.
std::vector<ImageRows> cut_rows(const KernelContext& context, std::size_t input, c10::IntArrayRef output, c10::IntArrayRef weight,
                           c10::IValue* arguments) {
  std::vector<ImageRows> all;
  const auto sizes = context.operands[input].sizes;
  for (std::size_t dim = 2; dim < sizes.size(); ++dim) {
    const auto cuts = context.layout(input)->mesh_dims_cutting(static_cast<std::int64_t>(dim));
    if (cuts.empty()) continue;
    const auto of = [&](int index) {
      const auto list = arguments[index].toIntVector();
      return list.size() == 1 ? list[0] : list[dim - 2];
    };
    const auto stride = of(0), padding = of(1), reach = of(2) * (weight[dim] - 1);
    const auto ranks = context.mesh.layout->size(cuts[0]);
    std::vector<shard_math::Interval> wanted;
    std::int64_t front = 0, back = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto piece = shard_math::piece(output[dim], ranks, rank);
      const auto begin = piece.offset * stride - padding;
      const auto end = piece.size == 0 ? begin : (piece.offset + piece.size - 1) * stride - padding + reach + 1;
      const auto first = std::clamp<std::int64_t>(begin, 0, sizes[dim]), last = std::clamp<std::int64_t>(end, 0, sizes[dim]);
      wanted.push_back({first, last - first});
      if (rank != context.coordinate()[static_cast<std::size_t>(cuts[0])] || piece.size == 0) continue;
      front = first - begin;
      back = end - last;
    }
    Sizes remaining = arguments[1].toIntVector();
    remaining.resize(sizes.size() - 2, remaining[0]);
    remaining[dim - 2] = 0;
    arguments[1] = std::move(remaining);
    const auto at = static_cast<std::int64_t>(dim);
    all.push_back({at, HaloExchange(context.mesh, cuts[0], at, sizes[dim], std::move(wanted)), front, back});
  }
  return all;
}

// Where results add up, the bias is added once. Empty parts give zeros, which the stock kernels may refuse.
void local_convolution(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  auto input = stack[base].toTensor();
  const auto weight = stack[base + 1].toTensor();
  const ResultDecision& decided = context.decision.results[0];
  if (!stack[base + 6].toBool()) {
    for (const auto& rows : cut_rows(context, 0, decided.sizes, context.operands[1].sizes, &stack[base + 3]))
      input = rows.fetch(input);
    stack[base] = input;
  }
  const auto groups = stack[base + 8].toInt();
  stack[base + 8] = local_groups(groups, input.size(1), context.operands[0].sizes[1]);
  if ((groups == 1 && adds_to_others(context, 0)) || adds_pending(context, 0) || adds_pending(context, 1))
    stack[base + 2] = c10::IValue();
  if (input.numel() != 0 && weight.numel() != 0) return context.call_stock(stack);
  const auto sizes = decided.sizes.empty() ? output_sizes(&stack[base + 3], input.sizes(), weight.sizes())
                                           : shard_math::local_sizes(*decided.layout, decided.sizes, context.coordinate());
  auto result = at::zeros(sizes, input.options());
  if (stack[base + 2].isTensor() && stack[base + 2].toTensor().defined()) {
    Sizes along(static_cast<std::size_t>(result.dim()), 1);
    along[1] = -1;
    result.add_(stack[base + 2].toTensor().view(along));
  }
  stack.resize(base);
  stack.emplace_back(std::move(result));
}

// convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups), also _convolution
std::optional<Rule> convolution(const OperatorCall& call) {
  const auto &input = call.operand(0), &weight = call.operand(1);
  if (input.ndim() < 3 || weight.ndim() != input.ndim()) return std::nullopt;
  const bool transposed = call.argument(6).toBool();
  const auto groups = call.argument(8).toInt();
  RuleBuilder builder(call);
  const int n = builder.factor();
  const auto channels = channel_letters(builder, groups, transposed, Factor::Kind::pass);
  const auto cuts = cut_dims(builder, transposed, input, input, Factor::Kind::pass);
  builder.operand(0, image(builder, n, channels.in, cuts))
      .operand(1, image(builder, channels.weight_first, channels.weight_second, no_cuts(input.ndim())));
  if (call.operand(2).defined) builder.operand(2, {channels.out});
  std::vector<int> out = cuts;
  out[0] = n;
  out[1] = channels.out;
  const bool image_cut = std::any_of(cuts.begin(), cuts.end(), [](int letter) { return letter != no_factor; });
  if (groups == 1 && !image_cut) {
    builder.result(out);
  } else {
    if (groups != 1 && !groups_fit(groups, transposed, input.sizes, weight.sizes)) return std::nullopt;
    auto sizes = output_sizes(&call.arguments[3], input.sizes, weight.sizes);
    if (std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; })) return std::nullopt;
    if (call.operand(2).defined && call.operand(2).sizes != c10::IntArrayRef{sizes[1]}) return std::nullopt;
    builder.sized_result(out, std::move(sizes)).by_sizes();
  }
  return builder.linear({0}).linear({1}).kernel(local_convolution).build();
}

// A rank without a part of the gradient, the input or the weight adds nothing; the stock kernels refuse empty weights. The
// bias's gradient, which every part of the input channels would give, is given once.
void local_convolution_backward(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto gradient = stack[base].toTensor(), weight = stack[base + 2].toTensor();
  auto input = stack[base + 1].toTensor();
  const auto groups = stack[base + 9].toInt();
  const auto mask = stack[base + 10].toBoolList();
  std::vector<ImageRows> cuts;
  if (!stack[base + 7].toBool())
    cuts = cut_rows(context, 1, context.operands[0].sizes, context.operands[2].sizes, &stack[base + 4]);
  for (const auto& rows : cuts) input = rows.fetch(input);
  stack[base + 1] = input;
  stack[base + 9] = local_groups(groups, input.size(1), context.operands[1].sizes[1]);
  if (!stack[base + 3].isNone()) stack[base + 3] = Sizes{gradient.size(1)};
  if (gradient.numel() != 0 && input.numel() != 0 && weight.numel() != 0) {
    context.call_stock(stack);
  } else {
    Sizes summed = {0};
    for (std::int64_t dim = 2; dim < gradient.dim(); ++dim) summed.push_back(dim);
    stack.resize(base);
    stack.emplace_back(mask.get(0) ? at::zeros_like(input) : at::Tensor());
    stack.emplace_back(mask.get(1) ? at::zeros_like(weight) : at::Tensor());
    stack.emplace_back(mask.get(2) ? gradient.sum(summed) : at::Tensor());
  }
  if (mask.get(2) && groups == 1 && adds_to_others(context, 1))
    stack[base + 2] = at::zeros_like(stack[base + 2].toTensor());
  if (mask.get(0))
    for (auto rows = cuts.rbegin(); rows != cuts.rend(); ++rows)
      stack[base] = rows->give_back(stack[base].toTensor());
}

// convolution_backward(grad, input, weight, bias_sizes?, stride, padding, dilation, transposed, output_padding, groups, mask)
//   -> (of input, of weight, of bias). Summed over the batch for weight and bias, over the output channels for the input.
std::optional<Rule> convolution_backward(const OperatorCall& call) {
  const auto &gradient = call.operand(0), &input = call.operand(1), &weight = call.operand(2);
  const auto ndim = input.ndim();
  if (ndim < 3 || weight.ndim() != ndim || gradient.ndim() != ndim) return std::nullopt;
  const bool transposed = call.argument(7).toBool();
  const auto groups = call.argument(9).toInt();
  if (groups != 1 && !groups_fit(groups, transposed, input.sizes, weight.sizes)) return std::nullopt;
  if (gradient.sizes[1] != (transposed ? weight.sizes[1] * groups : weight.sizes[0])) return std::nullopt;
  RuleBuilder builder(call);
  const int n = builder.factor(Factor::Kind::reduce);
  const auto channels = channel_letters(builder, groups, transposed, Factor::Kind::reduce);
  const auto cuts = cut_dims(builder, transposed, input, gradient, Factor::Kind::reduce);
  const auto input_letters = image(builder, n, channels.in, cuts),
             weight_letters = image(builder, channels.weight_first, channels.weight_second, no_cuts(ndim));
  builder.operand(0, image(builder, n, channels.out, cuts));
  builder.operand(1, input_letters).operand(2, weight_letters);
  builder.sized_result(input_letters, input.sizes.vec()).sized_result(weight_letters, weight.sizes.vec());
  builder.sized_result({channels.out}, {gradient.sizes[1]});
  const auto mask = call.argument(10).toBoolList();
  for (std::size_t i = 0; i < 3; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.linear({0}).by_sizes().kernel(local_convolution_backward).build();
}

}  // namespace

void detail::add_convolution_rules() {
  add_rule("aten::convolution", convolution);
  add_rule("aten::_convolution", convolution);
  add_rule("aten::convolution_backward", convolution_backward);
  // conv_tbc(self [time, batch, channels], weight [kernel, channels, out], bias [out], pad)
  add_rule("aten::conv_tbc", by_text<"TbC,KCo,o->Sbo">);
}

}  // namespace dtensor
