#include "dtensor/grouped_query.h"
#include "dtensor/meta.h"
#include "dtensor/override.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>

namespace dtensor::detail::override_ {
namespace {

// softmax(q k^T scale + mask) v, in operators that keep heads and batch where they are. As _scaled_dot_product_attention_math:
// short types are computed in float, both factors take the root of the scale, and a query that may attend to nothing gives 0.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal, std::optional<double> scale) {
  TORCH_CHECK(!is_causal || !mask || !mask->defined(),
              "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True");
  const auto dtype = query.scalar_type();
  const auto accurate = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
  };
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  const double root = std::sqrt(std::abs(factor));
  auto scores = at::matmul(accurate(query) * (factor < 0 ? -root : root), accurate(key).transpose(-2, -1) * root);
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  if (is_causal) {
    const auto options = at::TensorOptions().device(meta(query).local.device()).dtype(at::kBool);
    const auto hidden = at::ones({query.size(-2), key.size(-2)}, options).tril().logical_not();
    scores = scores.masked_fill(replicated(hidden, query), nothing);
  }
  if (mask && mask->defined())
    scores = mask->scalar_type() == at::kBool ? scores.masked_fill(mask->logical_not(), nothing) : scores + *mask;
  auto weights = at::_safe_softmax(scores, -1);
  if (dropout_p > 0) weights = at::dropout(weights, dropout_p, true);
  return at::matmul(weights, accurate(value)).to(dtype);
}

}  // namespace

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa) {
  if (enable_gqa && shares_heads(query, key))
    return override_::scaled_dot_product_attention(query, with_shared_heads(key, query), with_shared_heads(value, query), mask,
                                        dropout_p, is_causal, scale, false);
  const bool flash = query.device().is_cpu() && dropout_p == 0 && query.dim() == 4;
  if (!flash && !enable_gqa && is_dtensor(query) && query.dim() >= 3)
    return attention(query, key, value, mask, dropout_p, is_causal, scale);
  return call_composite("aten::scaled_dot_product_attention",
                        {query, key, value, mask ? c10::IValue(*mask) : c10::IValue(), dropout_p, is_causal,
                         scale ? c10::IValue(*scale) : c10::IValue(), enable_gqa});
}

}  // namespace dtensor::detail::override_
