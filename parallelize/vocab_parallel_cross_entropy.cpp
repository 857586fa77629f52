#include "parallelize/vocab_parallel_cross_entropy.h"

#include "dtensor/dtensor.h"
#include "parallelize/loss_options.h"
#include "placements/error.h"

#include <ATen/core/Reduction.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dtensor {
namespace {

// The share that is spread over all classes, the target among them.
double spread(const CrossEntropyOptions& options, std::int64_t classes) {
  if (options.smoothing == LabelSmoothing::pytorch) return options.label_smoothing;
  // A single class has no other one to give to.
  return classes == 1
             ? 0
             : options.label_smoothing * static_cast<double>(classes) / static_cast<double>(classes - 1);
}

std::int64_t number(LossReduction reduction) {
  switch (reduction) {
    case LossReduction::none:
      return at::Reduction::None;
    case LossReduction::sum:
      return at::Reduction::Sum;
    case LossReduction::mean:
      break;
  }
  return at::Reduction::Mean;
}

}  // namespace

detail::CrossEntropyTerms detail::loss_terms(const char* function, const CrossEntropyOptions& options,
                                             const at::Tensor& target, c10::IntArrayRef rows,
                                             std::int64_t vocabulary) {
  const auto classes = options.classes.value_or(vocabulary);
  if (classes < 1 || classes > vocabulary)
    throw PlacementError(
        fmt::format("{}: {} classes, but the vocabulary has {}", function, classes, vocabulary));
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1))
    throw PlacementError(
        fmt::format("{}: label_smoothing must be in [0, 1), got {}", function, options.label_smoothing));
  if (target.sizes() != rows)
    throw PlacementError(
        fmt::format("{}: the target has sizes [{}], but must have a class for each of the rows [{}]",
                    function, fmt::join(target.sizes(), ", "), fmt::join(rows, ", ")));
  if (!at::isIntegralType(target.scalar_type(), false))
    throw UnsupportedError(
        fmt::format("{}: the target is of type {}, but must hold classes as integers. For "
                    "probabilities call at::cross_entropy_loss, which leaves the vocabulary cut too",
                    function, c10::toString(target.scalar_type())));
  const auto& weight = options.weight;
  if (weight.defined() &&
      (weight.dim() != 1 || weight.size(0) != classes || !at::isFloatingType(weight.scalar_type())))
    throw PlacementError(
        fmt::format("{}: the weight has sizes [{}] and type {}, but must hold a number for each of {} "
                    "classes",
                    function, fmt::join(weight.sizes(), ", "), c10::toString(weight.scalar_type()), classes));
  if (weight.defined() && weight.requires_grad())
    throw UnsupportedError(fmt::format("{}: the weight requires grad, but has no gradient", function));
  CrossEntropyTerms terms;
  terms.class_dim = static_cast<std::int64_t>(rows.size());
  terms.classes = classes;
  terms.ignore_index = options.ignore_index;
  terms.reduction = number(options.reduction);
  terms.smoothing = spread(options, classes);
  terms.z_loss = options.z_loss;
  return terms;
}

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        const CrossEntropyOptions& options) {
  constexpr const char* name = "vocab_parallel_cross_entropy";
  if (!is_dtensor(logits))
    throw UnsupportedError(fmt::format(
        "{}: the logits [{}] are a plain tensor, of which nobody can tell whether it is this rank's part of "
        "the vocabulary or all of it. Bring them in with from_local(logits, mesh, placements) or "
        "distribute_tensor, or call at::cross_entropy_loss if they are whole.",
        name, fmt::join(logits.sizes(), ", ")));
  if (logits.dim() < 1 || !at::isFloatingType(logits.scalar_type()))
    throw PlacementError(
        fmt::format("{}: the logits [{}] of type {} must be floating, with the vocabulary last", name,
                    fmt::join(logits.sizes(), ", "), c10::toString(logits.scalar_type())));
  const auto terms = detail::loss_terms(name, options, target,
                                        logits.sizes().slice(0, logits.sizes().size() - 1), logits.size(-1));
  return detail::cross_entropy(logits, target, options.weight, terms);
}

}  // namespace dtensor
