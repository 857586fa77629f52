#include "dtensor/linear_cross_entropy.h"

#include "dtensor/dispatch.h"
#include "dtensor/meta.h"
#include "dtensor/override.h"
#include "dtensor/redistribute.h"
#include "ops/linear_cross_entropy.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& target, const std::optional<at::Tensor>& class_weight,
                            const CrossEntropyTerms& terms, std::int64_t chunk) {
    static const OperatorInfo& info = operator_info("dtensor::linear_cross_entropy_rows", "");
    torch::jit::Stack stack{hidden,          weight,       target,        class_weight, terms.ignore_index,
                            terms.smoothing, terms.z_loss, terms.classes, chunk};
    {
      const CollectiveReason reason("loss");
      dispatch(info, stack);
    }
    const auto [loss, total] = reduce_rows(stack[0].toTensor(), stack[1].toTensor(), terms.reduction);
    context->save_for_backward({hidden, weight, target, class_weight.value_or(at::Tensor()),
                                stack[2].toTensor(), stack[3].toTensor(), total});
    context->saved_data["numbers"] =
        std::vector<std::int64_t>{terms.classes, terms.ignore_index, terms.reduction, chunk};
    context->saved_data["factors"] = std::vector<double>{terms.smoothing, terms.z_loss};
    return loss;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list results(6);
    if (!gradients[0].defined()) return results;
    const auto saved = context->get_saved_variables();
    const auto &hidden = saved[0], &weight = saved[1], &target = saved[2], &class_weight = saved[3];
    const auto numbers = context->saved_data["numbers"].toIntVector();
    const auto factors = context->saved_data["factors"].toDoubleVector();
    const bool wants_hidden = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    if (at::GradMode::is_enabled()) {  // to be differentiated again: by the two operators
      const CrossEntropyTerms terms{hidden.dim() - 1, numbers[0], numbers[1],
                                    numbers[2],       factors[0], factors[1]};
      const auto loss = cross_entropy(at::matmul(hidden, weight.t()), target, class_weight, terms);
      variable_list inputs;
      if (wants_hidden) inputs.push_back(hidden);
      if (wants_weight) inputs.push_back(weight);
      const auto found = torch::autograd::grad({loss}, inputs, {gradients[0]}, true, true);
      if (wants_hidden) results[0] = found.front();
      if (wants_weight) results[1] = found.back();
      return results;
    }
    static const OperatorInfo& info = operator_info("dtensor::linear_cross_entropy_gradient", "");
    const auto coefficient =
        placed_as_rows(row_coefficient(gradients[0], saved[6]), hidden, hidden.dim() - 1);
    torch::jit::Stack stack{hidden,       weight,      target,     optional(class_weight),
                            coefficient,  saved[4],    saved[5],   numbers[1],
                            factors[0],   factors[1],  numbers[0], numbers[3],
                            wants_hidden, wants_weight};
    dispatch(info, stack);
    results[0] = stack[0].toTensor();
    results[1] = stack[1].toTensor();
    return results;
  }
};

void check_weight(const at::Tensor& weight) {
  const Layout* layout = meta(weight).layout;
  for (int dim = 0; dim < layout->mesh_ndim(); ++dim)
    if (!layout->placement(dim).is_replicate() && !layout->placement(dim).is_sharded(0))
      throw UnsupportedError(fmt::format(
          "linear_cross_entropy: the weight [{}] is placed {}, but its rows, the classes, are what may be "
          "cut: Shard(0) (style colwise) or Replicate on mesh dimension {}.",
          fmt::join(weight.sizes(), ", "), to_string(layout->placements()),
          layout->mesh().names()[static_cast<std::size_t>(dim)]));
}

// hidden, whole where the weight is cut: a node even where nothing moves, because its gradient is pending there.
at::Tensor placed_for(const at::Tensor& weight, const at::Tensor& hidden) {
  const Layout *of_weight = meta(weight).layout, *layout = meta(hidden).layout;
  if (of_weight->mesh_pointer() != layout->mesh_pointer()) return hidden;  // refused by the dispatch
  auto placements = layout->placements();
  std::vector<std::int64_t> mesh_dims;
  for (int dim = 0; dim < layout->mesh_ndim(); ++dim) {
    auto& placement = placements[static_cast<std::size_t>(dim)];
    const bool stays = placement.is_sharded() && placement.dim() + 1 < hidden.dim();
    if (of_weight->placement(dim).is_replicate() && (stays || placement.is_replicate())) continue;
    placement = Placement();
    mesh_dims.push_back(dim);
  }
  if (mesh_dims.empty()) return hidden;
  const CollectiveReason reason("loss");
  return move_dims(hidden, Layout::of(layout->mesh_pointer(), placements, layout->cut_order()), mesh_dims);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                const at::Tensor& class_weight, const CrossEntropyTerms& terms,
                                std::int64_t chunk) {
  check_weight(weight);
  override_::prepare(hidden, "linear_cross_entropy");
  override_::prepare(weight, "linear_cross_entropy");
  auto x = hidden, w = weight;
  if (const auto device = x.device().type();
      at::autocast::is_autocast_enabled(device)) {  // as it does to linear
    x = x.to(at::autocast::get_autocast_dtype(device));
    w = w.to(at::autocast::get_autocast_dtype(device));
  }
  x = placed_for(w, x);
  auto of_classes = class_weight;
  if (of_classes.defined() && is_dtensor(of_classes))
    of_classes = move(of_classes, meta(of_classes).layout->replicated());
  return LinearCrossEntropyFunction::apply(x, w, placed_as_rows(target, x, x.dim() - 1), optional(of_classes),
                                           terms, chunk);
}

void define_linear_cross_entropy(torch::Library& definitions) {
  definitions.def(
      "linear_cross_entropy_rows(Tensor hidden, Tensor weight, Tensor target, Tensor? class_weight, int "
      "ignore_index, "
      "float smoothing, float z_loss, int classes, int chunk) -> (Tensor losses, Tensor weights, Tensor "
      "maximum, Tensor "
      "slope)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(linear_cross_entropy_rows)));
  definitions.def(
      "linear_cross_entropy_gradient(Tensor hidden, Tensor weight, Tensor target, Tensor? class_weight, "
      "Tensor "
      "coefficient, Tensor maximum, Tensor slope, int ignore_index, float smoothing, float z_loss, int "
      "classes, int chunk, "
      "bool wants_hidden, bool wants_weight) -> (Tensor hidden_gradient, Tensor weight_gradient)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(linear_cross_entropy_gradient)));
}

}  // namespace dtensor::detail
