#include "dtensor/dispatch.h"
#include "dtensor/override.h"
#include "dtensor/wished_move.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail::override_ {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor lookup_below(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding, bool scale, bool sparse) {
  static const OperatorInfo& info = operator_info("aten::embedding", "");
  const at::NoGradGuard no_grad;
  return dispatch_call(info, weight, indices, padding, scale, sparse);
}

// The stock formula does not know that the table is cut by vocabulary and would build all of it on every rank.
struct EmbeddingGradientFunction : torch::autograd::Function<EmbeddingGradientFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gradient, const at::Tensor& indices,
                            const at::Tensor& weight, std::int64_t padding, bool scale) {
    context->save_for_backward({indices});
    context->saved_data["padding"] = padding;
    TORCH_CHECK(!scale || !at::GradMode::is_enabled() || !gradient.requires_grad(),
                "embedding: double backward with scale_grad_by_freq is not supported");
    static const OperatorInfo& info = operator_info("dtensor::embedding_gradient", "");
    return dispatch_call(info, gradient, indices, weight, padding, scale);
  }
  // Linear in the gradient: its derivative looks the rows up again, without the padding rows.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(5);
    const auto indices = context->get_saved_variables()[0];
    const auto padding = context->saved_data["padding"].toInt();
    auto rows = at::embedding(gradients[0], indices, -1, false, false);
    if (padding >= 0) rows = rows.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
    return {rows, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& indices,
                            std::int64_t padding, bool scale) {
    context->save_for_backward({weight, indices});
    context->saved_data["padding"] = padding;
    context->saved_data["scale"] = scale;
    return lookup_below(weight, indices, padding, scale, false);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(4);
    const auto saved = context->get_saved_variables();
    return {EmbeddingGradientFunction::apply(gradients[0], saved[1], saved[0].detach(), context->saved_data["padding"].toInt(),
                                             context->saved_data["scale"].toBool()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding_idx, bool scale, bool sparse) {
  prepare(weight, "embedding");
  const auto padding = padding_idx.expect_int();
  const Wish* wish = find_wish(weight, WishFamily::embedding);
  const auto input = with_input_wish(indices, wish);
  const bool graph = at::GradMode::is_enabled() && weight.requires_grad() && !sparse;
  auto result = graph ? EmbeddingFunction::apply(weight, input, padding, scale)
                      : lookup_below(weight, input, padding, scale, sparse);
  return with_output_wish(result, wish);
}

at::Tensor embedding_below(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding_idx, bool scale,
                           bool sparse) {
  if (c10::InferenceMode::is_enabled()) return embedding(weight, indices, padding_idx, scale, sparse);
  return lookup_below(weight, indices, padding_idx.expect_int(), scale, sparse);
}

}  // namespace dtensor::detail::override_
