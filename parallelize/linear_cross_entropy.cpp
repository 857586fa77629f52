#include "parallelize/linear_cross_entropy.h"

#include "dtensor/dtensor.h"
#include "dtensor/linear_cross_entropy.h"
#include "parallelize/loss_options.h"
#include "placements/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dtensor {

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options) {
  constexpr const char* name = "linear_cross_entropy";
  for (const auto& [tensor, what] : {std::pair(hidden, "hidden"), std::pair(weight, "the weight")})
    if (!is_dtensor(tensor))
      throw UnsupportedError(
          fmt::format("{}: {} [{}] is a plain tensor: bring it in with distribute_tensor or from_local", name,
                      what, fmt::join(tensor.sizes(), ", ")));
  if (hidden.dim() < 1 || weight.dim() != 2 || hidden.size(-1) != weight.size(1) ||
      hidden.scalar_type() != weight.scalar_type() || !at::isFloatingType(hidden.scalar_type()))
    throw PlacementError(fmt::format(
        "{}: hidden [{}] of type {} and weight [{}] of type {} do not fit: [..., h] and [vocabulary, h]",
        name, fmt::join(hidden.sizes(), ", "), c10::toString(hidden.scalar_type()),
        fmt::join(weight.sizes(), ", "), c10::toString(weight.scalar_type())));
  if (options.chunk < 0)
    throw PlacementError(fmt::format("{}: chunk must not be negative, got {}", name, options.chunk));
  const auto rows = hidden.sizes().slice(0, hidden.sizes().size() - 1);
  const auto terms = detail::loss_terms(name, options, target, rows, weight.size(0));
  return detail::linear_cross_entropy(hidden, weight, target, options.weight, terms, options.chunk);
}

}  // namespace dtensor
