#include "dtensor/cross_entropy.h"

#include "dtensor/dispatch.h"
#include "dtensor/loss_parallel.h"
#include "dtensor/meta.h"
#include "dtensor/override.h"
#include "dtensor/redistribute.h"
#include "ops/cross_entropy.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The weights where the kernel takes them: cut as the logits' classes are, or whole.
at::Tensor placed_as_classes(const at::Tensor& weight, const at::Tensor& logits, std::int64_t class_dim) {
  if (!weight.defined() || !is_dtensor(weight)) return weight;
  const Layout *layout = meta(logits).layout, *own = meta(weight).layout;
  bool alike = own->mesh_pointer() == layout->mesh_pointer() && weight.size(0) == logits.size(class_dim);
  for (int dim = 0; alike && dim < layout->mesh_ndim(); ++dim) {
    const auto& placement = layout->placement(dim);
    alike = own->placement(dim) == (placement.is_sharded(class_dim) ? placement.with_dim(0) : Placement());
  }
  alike = alike && own->mesh_dims_cutting(0) == layout->mesh_dims_cutting(class_dim);
  return alike ? weight : move(weight, own->replicated());
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// losses, weights, maximum, slope: see ops/class_loss.h
variable_list rows_of(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight,
                      const CrossEntropyTerms& terms) {
  static const OperatorInfo& info = operator_info("dtensor::cross_entropy_rows", "");
  torch::jit::Stack stack{
      logits,          target,       optional(weight), terms.class_dim, terms.ignore_index,
      terms.smoothing, terms.z_loss, terms.classes};
  const CollectiveReason reason("loss");
  dispatch(info, stack);
  variable_list results;
  for (const auto& value : stack) results.push_back(value.toTensor());
  return results;
}

// The same loss in differentiable operators, for the backward of the backward.
at::Tensor composed(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight,
                    const at::Tensor& row_weights, const at::Tensor& total, const CrossEntropyTerms& terms) {
  auto x = logits.size(terms.class_dim) == terms.classes ? logits
                                                         : logits.narrow(terms.class_dim, 0, terms.classes);
  const std::int64_t class_dim = x.dim() == 1 ? 0 : 1;
  x = x.movedim(terms.class_dim, class_dim);
  const auto log_probabilities = x.log_softmax(class_dim);
  auto losses = at::nll_loss_nd(log_probabilities, target, weight, at::Reduction::None, terms.ignore_index);
  if (terms.smoothing > 0) {
    auto sizes = std::vector<std::int64_t>(static_cast<std::size_t>(x.dim()), 1);
    sizes[static_cast<std::size_t>(class_dim)] = terms.classes;
    const auto weighted = weight.defined() ? log_probabilities * weight.view(sizes) : log_probabilities;
    const auto spread = weighted.sum({class_dim}).masked_fill(target.eq(terms.ignore_index), 0);
    losses = losses * (1 - terms.smoothing) - spread * (terms.smoothing / static_cast<double>(terms.classes));
  }
  if (terms.z_loss != 0) losses = losses + x.logsumexp({class_dim}).square() * row_weights * terms.z_loss;
  if (terms.reduction == at::Reduction::None) return losses;
  return total.defined() ? losses.sum() / total : losses.sum();
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& target,
                            const std::optional<at::Tensor>& class_weight, const CrossEntropyTerms& terms) {
    const auto weight = class_weight.value_or(at::Tensor());
    const auto rows = rows_of(logits, target, weight, terms);
    const auto [loss, total] = reduce_rows(rows[0], rows[1], terms.reduction);
    context->save_for_backward({logits, target, weight, rows[1], rows[2], rows[3], total});
    context->saved_data["numbers"] =
        std::vector<std::int64_t>{terms.class_dim, terms.classes, terms.ignore_index, terms.reduction};
    context->saved_data["factors"] = std::vector<double>{terms.smoothing, terms.z_loss};
    return loss;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list results(4);
    if (!gradients[0].defined()) return results;
    const auto saved = context->get_saved_variables();
    const auto &logits = saved[0], &target = saved[1], &weight = saved[2];
    const auto numbers = context->saved_data["numbers"].toIntVector();
    const auto factors = context->saved_data["factors"].toDoubleVector();
    const CrossEntropyTerms terms{numbers[0], numbers[1], numbers[2], numbers[3], factors[0], factors[1]};
    if (at::GradMode::is_enabled() && (logits.requires_grad() || gradients[0].requires_grad())) {
      const auto loss = composed(logits, target, weight, saved[3], saved[6], terms);
      results[0] =
          torch::autograd::grad({loss}, {logits}, {gradients[0].to(loss.scalar_type())}, true, true)[0];
      return results;
    }
    static const OperatorInfo& info = operator_info("dtensor::cross_entropy_gradient", "");
    const auto coefficient = placed_as_rows(row_coefficient(gradients[0], saved[6]), logits, terms.class_dim);
    results[0] =
        dispatch_call(info, logits, target, optional(weight), coefficient, saved[4], saved[5],
                      terms.class_dim, terms.ignore_index, terms.smoothing, terms.z_loss, terms.classes);
    return results;
  }
};

}  // namespace

at::Tensor placed_as_rows(const at::Tensor& target, const at::Tensor& logits, std::int64_t class_dim) {
  if (!is_dtensor(target)) return target;
  if (target.dim() == 0) return move(target, meta(target).layout->replicated());  // it may be pending
  const Layout* layout = meta(logits).layout;
  if (meta(target).layout->mesh_pointer() != layout->mesh_pointer())
    return target;  // refused by the dispatch
  Placements placements;
  for (const auto& placement : layout->placements())
    placements.push_back(!placement.is_sharded() || placement.dim() == class_dim
                             ? Placement()
                             : placement.with_dim(placement.dim() - (placement.dim() > class_dim ? 1 : 0)));
  return move(target, Layout::of(layout->mesh_pointer(), placements, layout->cut_order()));
}

ReducedLoss reduce_rows(const at::Tensor& losses, const at::Tensor& weights, std::int64_t reduction) {
  if (reduction == at::Reduction::None) return {losses, {}};
  if (reduction == at::Reduction::Sum) return {losses.sum(), {}};
  auto total = weights.sum();
  {
    const CollectiveReason reason("loss");
    total = move(total, meta(total).layout->without_partial());
  }
  return {losses.sum() / total, total};
}

at::Tensor row_coefficient(const at::Tensor& gradient, const at::Tensor& total) {
  auto coefficient = gradient;
  if (is_dtensor(coefficient)) coefficient = move(coefficient, meta(coefficient).layout->without_partial());
  return total.defined() ? coefficient / total : coefficient;
}

void check_loss_parallel(const at::Tensor& logits) {
  if (!LossParallel::active() || !is_dtensor(logits) || !meta(logits).layout->has_partial()) return;
  throw UnsupportedError(fmt::format(
      "cross entropy inside LossParallel would have to reduce its logits, which are pending: [{}] {}. "
      "Reduce them yourself (redistribute), or cut the head's weight by its rows, so that the logits "
      "come out cut over the vocabulary.",
      fmt::join(logits.sizes(), ", "), to_string(meta(logits).layout->placements())));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight,
                         const CrossEntropyTerms& terms) {
  override_::prepare(logits, "cross_entropy");
  auto x = logits;
  check_loss_parallel(x);
  if (meta(x).layout->has_partial()) {
    const CollectiveReason reason("implicit move");
    x = redistribute(x, meta(x).layout->without_partial());
  }
  return CrossEntropyFunction::apply(x, placed_as_rows(target, x, terms.class_dim),
                                     optional(placed_as_classes(weight, x, terms.class_dim)), terms);
}

void define_cross_entropy(torch::Library& definitions) {
  definitions.def(
      "cross_entropy_rows(Tensor logits, Tensor target, Tensor? weight, int class_dim, int ignore_index, "
      "float smoothing, "
      "float z_loss, int classes) -> (Tensor losses, Tensor weights, Tensor maximum, Tensor slope)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(cross_entropy_rows)));
  definitions.def(
      "cross_entropy_gradient(Tensor logits, Tensor target, Tensor? weight, Tensor coefficient, Tensor "
      "maximum, Tensor "
      "slope, int class_dim, int ignore_index, float smoothing, float z_loss, int classes) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(cross_entropy_gradient)));
}

}  // namespace dtensor::detail
