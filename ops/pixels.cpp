// Pixels between the image and the channels: pixel_shuffle, im2col, channel_shuffle. Dimensions that one side holds as the
// outer part of a longer one pass where they are cut evenly.
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

namespace dtensor {
namespace {

using Sizes = std::vector<std::int64_t>;

// pixel_shuffle(self [..., c r r, h, w], r) -> [..., c, h r, w r]; pixel_unshuffle the other way. Values only change place.
template <bool unshuffle>
std::optional<Rule> pixel_shuffle(const OperatorCall& call) {
  const auto& self = call.operand(0);
  const auto r = call.argument(1).toInt();
  if (self.ndim() < 3 || r < 1) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  Sizes sizes = self.sizes.vec();
  const std::size_t channels = sizes.size() - 3;
  for (std::size_t dim = channels; dim < sizes.size(); ++dim) {
    const auto factor = dim == channels ? r * r : r;
    const bool shorter = (dim == channels) != unshuffle;
    if (shorter && sizes[dim] % factor != 0) return std::nullopt;
    const auto before = sizes[dim];
    sizes[dim] = shorter ? before / factor : before * factor;
    letters[dim] = builder.even_factor(shorter ? sizes[dim] : before);
  }
  return builder.operand(0, letters)
      .sized_result(letters, std::move(sizes))
      .passes_any_pending()
      .by_sizes()
      .build();
}

// channel_shuffle(self [n, c, ...], groups): values change place among the channels.
std::optional<Rule> channel_shuffle(const OperatorCall& call) {
  if (call.operand(0).ndim() < 3) return std::nullopt;
  RuleBuilder builder(call);
  const auto letters = builder.letters(0);
  builder.at(letters[1]).kind = Factor::Kind::whole;
  return builder.result(letters).passes_any_pending().build();
}

// How many places a window has along an image's dimension; `dim`: 0 or 1.
std::int64_t places(std::int64_t size, const c10::IValue* window, std::size_t dim) {
  const auto of = [dim](const c10::IValue& value) {
    const auto list = value.toIntVector();
    return list.size() == 1 ? list[0] : list.at(dim);
  };
  const auto kernel = of(window[0]), dilation = of(window[1]), padding = of(window[2]), stride = of(window[3]);
  return stride < 1 ? -1 : (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}
std::int64_t window_area(const c10::IValue& kernel) {
  const auto list = kernel.toIntVector();
  return list.size() == 1 ? list[0] * list[0] : list.at(0) * list.at(1);
}

// im2col(self [n?, c, h, w], kernel, dilation, padding, stride) -> [n?, c k k, places]
std::optional<Rule> im2col(const OperatorCall& call) {
  const auto& self = call.operand(0);
  if (self.ndim() != 3 && self.ndim() != 4) return std::nullopt;
  const auto lead = static_cast<std::size_t>(self.ndim() - 3);
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  for (std::size_t dim = lead + 1; dim < letters.size(); ++dim) builder.at(letters[dim]).kind = Factor::Kind::whole;
  letters[lead] = builder.even_factor(self.sizes[lead]);
  builder.operand(0, letters);
  const auto down = places(self.sizes[lead + 1], &call.arguments[1], 0),
             across = places(self.sizes[lead + 2], &call.arguments[1], 1);
  if (down < 1 || across < 1) return std::nullopt;
  Sizes sizes(self.sizes.begin(), self.sizes.begin() + static_cast<std::ptrdiff_t>(lead));
  sizes.push_back(self.sizes[lead] * window_area(call.argument(1)));
  sizes.push_back(down * across);
  letters.resize(lead + 1);
  letters.push_back(no_factor);
  return builder.sized_result(letters, std::move(sizes)).linear({0}).by_sizes().build();
}

// col2im(self [n?, c k k, places], output_size, kernel, dilation, padding, stride) -> [n?, c, h, w]
std::optional<Rule> col2im(const OperatorCall& call) {
  const auto& self = call.operand(0);
  const auto image = call.argument(1).toIntVector();
  const auto area = window_area(call.argument(2));
  if ((self.ndim() != 2 && self.ndim() != 3) || image.size() != 2 || area < 1) return std::nullopt;
  const auto lead = static_cast<std::size_t>(self.ndim() - 2);
  if (self.sizes[lead] % area != 0) return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  builder.at(letters[lead + 1]).kind = Factor::Kind::whole;
  letters[lead] = builder.even_factor(self.sizes[lead] / area);
  builder.operand(0, letters);
  Sizes sizes(self.sizes.begin(), self.sizes.begin() + static_cast<std::ptrdiff_t>(lead));
  sizes.insert(sizes.end(), {self.sizes[lead] / area, image[0], image[1]});
  letters.resize(lead + 1);
  letters.insert(letters.end(), {no_factor, no_factor});
  return builder.sized_result(letters, std::move(sizes)).linear({0}).by_sizes().build();
}

}  // namespace

void detail::add_pixel_rules() {
  add_rule("aten::pixel_shuffle", pixel_shuffle<false>);
  add_rule("aten::pixel_unshuffle", pixel_shuffle<true>);
  add_rule("aten::channel_shuffle", channel_shuffle);
  add_rule("aten::im2col", im2col);
  add_rule("aten::col2im", col2im);
}

}  // namespace dtensor
