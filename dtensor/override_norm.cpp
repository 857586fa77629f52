#include "dtensor/override.h"
#include "dtensor/wished_move.h"

#include <ATen/Functions.h>

namespace dtensor::detail::override_ {

at::Tensor layer_norm(const at::Tensor& x, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool) {
  const Wish* wish = weight && weight->defined() ? find_wish(*weight, WishFamily::norm) : nullptr;
  const auto input = with_input_wish(x, wish);
  return with_output_wish(std::get<0>(at::native_layer_norm_symint(input, shape, weight, bias, eps)), wish);
}

at::Tensor rms_norm(const at::Tensor& x, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                    std::optional<double> eps) {
  const bool weighted = weight && weight->defined();
  const Wish* wish = weighted ? find_wish(*weight, WishFamily::norm) : nullptr;
  const auto input = with_input_wish(x, wish);
  std::vector<std::int64_t> sizes;
  for (const auto& size : shape) sizes.push_back(size.expect_int());
  auto result = call_composite("aten::rms_norm", {input, sizes, weighted ? c10::IValue(*weight) : c10::IValue(),
                                                  eps ? c10::IValue(*eps) : c10::IValue()});
  return with_output_wish(result, wish);
}

}  // namespace dtensor::detail::override_
