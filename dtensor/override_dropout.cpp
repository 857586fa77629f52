// Dropout of single values and of whole features. The stock composites of the latter make their noise as plain tensors, which
// every rank would draw for itself.
#include "dtensor/override.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

namespace dtensor::detail::override_ {
namespace {

void check_probability(double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
}

// x * scale + shift: one scale and shift for each feature x[n, c, ...].
struct FeatureNoise {
  at::Tensor scale;
  at::Tensor shift;  // only for alpha dropout
};
FeatureNoise feature_noise(const at::Tensor& x, double p, bool alpha_dropout) {
  TORCH_CHECK(x.dim() >= 2, "Feature dropout requires at least 2 dimensions in the input");
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[0] = x.size(0);
  sizes[1] = x.size(1);
  auto kept = x.detach().new_empty(sizes).bernoulli_(1 - p);
  if (!alpha_dropout) return {kept.div_(1 - p), {}};
  constexpr double alpha = 1.7580993408473766;  // -(saturation value of SELU): Klambauer et al., NeurIPS 2017
  const double a = 1 / std::sqrt((alpha * alpha * p + 1) * (1 - p));
  return {kept * a, (kept - 1).mul_(alpha * a).add_(alpha * a * p)};
}

template <bool alpha>
at::Tensor feature_dropout_of(const at::Tensor& x, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || x.numel() == 0) return x;
  if (p == 1) return x * 0;
  const auto noise = feature_noise(x, p, alpha);
  return alpha ? x * noise.scale + noise.shift : x * noise.scale;
}
template <bool alpha>
at::Tensor& feature_dropout_in_place_of(at::Tensor& x, double p, bool train) {
  check_probability(p);
  if (p == 0 || !train || x.numel() == 0) return x;
  if (p == 1) return x.mul_(0);
  const auto noise = feature_noise(x, p, alpha);
  x.mul_(noise.scale);
  return alpha ? x.add_(noise.shift) : x;
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, bool train) {
  check_probability(p);
  if (!train || p == 0) return x;
  return std::get<0>(at::native_dropout(x, p, train));
}

at::Tensor feature_dropout(const at::Tensor& x, double p, bool train) { return feature_dropout_of<false>(x, p, train); }
at::Tensor feature_alpha_dropout(const at::Tensor& x, double p, bool train) { return feature_dropout_of<true>(x, p, train); }
at::Tensor& feature_dropout_(at::Tensor& x, double p, bool train) { return feature_dropout_in_place_of<false>(x, p, train); }
at::Tensor& feature_alpha_dropout_(at::Tensor& x, double p, bool train) {
  return feature_dropout_in_place_of<true>(x, p, train);
}

}  // namespace dtensor::detail::override_
