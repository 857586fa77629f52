#include "dtensor/meta.h"
#include "dtensor/override.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>

namespace dtensor::detail::override_ {
namespace {

// A tensor that this rank made and that every rank makes alike.
at::Tensor replicated(const at::Tensor& local, const at::Tensor& like) {
  const Meta& data = meta(like);
  return wrap(local, data.layout->replicated(), data.mesh, local.sizes());
}

// softmax(q k^T scale + mask) v, in operators that keep heads and batch where they are.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal, std::optional<double> scale) {
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  auto scores = at::matmul(query * factor, key.transpose(-2, -1));
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  if (is_causal) {
    const auto options = at::TensorOptions().device(meta(query).local.device()).dtype(at::kBool);
    const auto hidden = at::ones({query.size(-2), key.size(-2)}, options).tril().logical_not();
    scores = scores.masked_fill(replicated(hidden, query), nothing);
  }
  if (mask && mask->defined())
    scores = mask->scalar_type() == at::kBool ? scores.masked_fill(mask->logical_not(), nothing) : scores + *mask;
  auto weights = at::softmax(scores, -1);
  if (dropout_p > 0) weights = at::dropout(weights, dropout_p, true);
  return at::matmul(weights, value);
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (!train || p == 0) return x;
  return std::get<0>(at::native_dropout(x, p, train));
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa) {
  const bool flash = query.device().is_cpu() && dropout_p == 0 && query.dim() == 4;
  if (!flash && !enable_gqa && is_dtensor(query) && query.dim() >= 3)
    return attention(query, key, value, mask, dropout_p, is_causal, scale);
  return call_composite("aten::scaled_dot_product_attention",
                        {query, key, value, mask ? c10::IValue(*mask) : c10::IValue(), dropout_p, is_causal,
                         scale ? c10::IValue(*scale) : c10::IValue(), enable_gqa});
}

}  // namespace dtensor::detail::override_
