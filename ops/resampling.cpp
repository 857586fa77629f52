// Images in other sizes: upsampling, padding, sampling at given points. Batch and channels pass.
#include "ops/kernel_context.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>

#include <string>

namespace dtensor {
namespace {

// upsample_*_backward(grad, output_size, input_size, ...): input_size has the batch and the channels in it.
std::optional<Rule> upsample_backward(const OperatorCall& call) {
  auto sizes = call.argument(2).toIntVector();
  if (call.operand(0).ndim() != static_cast<std::int64_t>(sizes.size()) || sizes.size() < 3)
    return std::nullopt;
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  for (std::size_t dim = 2; dim < letters.size(); ++dim) {
    builder.at(letters[dim]).kind = Factor::Kind::whole;
    letters[dim] = no_factor;
  }
  return builder.sized_result(letters, std::move(sizes)).size_argument(2).linear({0}).by_sizes().build();
}

// grid_sampler_2d_backward(grad [n, c, p, q], input [n, c, h, w], grid [n, p, q, 2], ..., mask) -> (of input, of grid): the
// input's sums over the points, the grid's over the channels. In three dimensions likewise.
std::optional<Rule> grid_sampler_backward(const OperatorCall& call) {
  const auto ndim = call.operand(1).ndim();
  if (ndim < 4 || call.operand(0).ndim() != ndim || call.operand(2).ndim() != ndim) return std::nullopt;
  RuleBuilder builder(call);
  const int n = builder.factor(), c = builder.factor(Factor::Kind::reduce);
  std::vector<int> gradient = {n, c}, input = {n, c}, grid = {n};
  for (std::int64_t dim = 2; dim < ndim; ++dim) {
    gradient.push_back(builder.factor(Factor::Kind::reduce));
    grid.push_back(gradient.back());
    input.push_back(builder.factor(Factor::Kind::whole));
  }
  grid.push_back(builder.factor(Factor::Kind::whole));
  const auto mask = call.argument(6).toBoolList();
  builder.operand(0, gradient).operand(1, input).operand(2, grid).result(input).result(grid).linear({0});
  for (std::size_t i = 0; i < 2; ++i) builder.rule().results[i].defined = mask.get(i);
  return builder.build();
}

// constant_pad_nd(self, pad, value): `pad` has two numbers a dimension, from the last one on. Dimensions without padding pass.
std::optional<Rule> constant_pad(const OperatorCall& call) {
  const auto pad = call.argument(1).toIntVector();
  RuleBuilder builder(call);
  auto letters = builder.letters(0);
  if (pad.size() % 2 != 0 || pad.size() / 2 > letters.size()) return std::nullopt;
  for (std::size_t i = 0; i < pad.size() / 2; ++i) {
    if (pad[2 * i] == 0 && pad[2 * i + 1] == 0) continue;
    auto& letter = letters[letters.size() - 1 - i];
    builder.at(letter).kind = Factor::Kind::whole;
    letter = no_factor;
  }
  builder.result(letters);
  if (call.argument(2).toScalar().equal(0)) builder.linear({0});
  return builder.build();
}

// affine_grid_generator(theta [n, 2, 3], size [n, c, h, w], align_corners) -> [n, h, w, 2], in three dimensions likewise:
// the batch passes.
void local_affine_grid(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto theta = stack[base].toTensor();
  auto sizes = stack[base + 1].toIntVector();
  sizes[0] = theta.size(0);
  if (sizes[0] != 0) {
    stack[base + 1] = sizes;
    return context.call_stock(stack);
  }
  sizes.erase(sizes.begin() + 1);
  sizes.push_back(theta.size(1));
  stack.resize(base);
  stack.emplace_back(at::zeros(sizes, theta.options()));
}
std::optional<Rule> affine_grid(const OperatorCall& call) {
  const auto sizes = call.argument(1).toIntVector();
  const auto& theta = call.operand(0);
  if (theta.ndim() != 3 || sizes.empty() || theta.sizes[0] != sizes[0]) return std::nullopt;
  RuleBuilder builder(call);
  const int n = builder.factor();
  builder.operand(0, {n, builder.factor(Factor::Kind::whole), builder.factor(Factor::Kind::whole)});
  std::vector<int> out(sizes.size(), no_factor);
  out[0] = n;
  return builder.result(out).linear({0}).by_sizes().kernel(local_affine_grid).build();
}

}  // namespace

void detail::add_resampling_rules() {
  for (const char* name : {"upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"})
    add_rule(std::string("aten::") + name, by_text<"*ncW->ncQ">);
  for (const char* name : {"upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d",
                           "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"})
    add_rule(std::string("aten::") + name, by_text<"*ncHW->ncPQ">);
  for (const char* name : {"upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"})
    add_rule(std::string("aten::") + name, by_text<"*ncHWD->ncPQR">);
  for (const char* name :
       {"upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d", "upsample_nearest2d",
        "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"})
    add_rule(std::string("aten::") + name + "_backward", upsample_backward);
  add_rule("aten::grid_sampler_2d", by_text<"*ncHW,npqT->ncpq">);
  add_rule("aten::grid_sampler_3d", by_text<"*ncHWD,npqrT->ncpqr">);
  add_rule("aten::grid_sampler_2d_backward", grid_sampler_backward);
  add_rule("aten::grid_sampler_3d_backward", grid_sampler_backward);
  for (const char* name : {"aten::reflection_pad", "aten::replication_pad"}) {
    add_rule(std::string(name) + "1d", by_text<"*...W->...Q">);
    add_rule(std::string(name) + "2d", by_text<"*...HW->...PQ">);
    add_rule(std::string(name) + "3d", by_text<"*...HWD->...PQR">);
    add_rule(std::string(name) + "1d_backward", by_text<"*...Q,...W->...W">);
    add_rule(std::string(name) + "2d_backward", by_text<"*...PQ,...HW->...HW">);
    add_rule(std::string(name) + "3d_backward", by_text<"*...PQR,...HWD->...HWD">);
  }
  add_rule("aten::constant_pad_nd", RuleEntry{constant_pad, true, false});
  add_rule("aten::affine_grid_generator", affine_grid);
}

}  // namespace dtensor
