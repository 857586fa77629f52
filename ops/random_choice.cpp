// multinomial: choices by weight, drawn by global element index.
#include "ops/kernel_context.h"
#include "ops/philox.h"
#include "ops/rule_builder.h"
#include "ops/rule_tables.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

namespace dtensor {
namespace {

// The stock operator refuses weights by their values; some rows are another rank's, and no rank may throw alone.
void check_weights(const KernelContext& context, const at::Tensor& weights, bool rows) {
  auto faults = at::zeros({2}, weights.options().dtype(at::kLong));
  if (weights.numel() > 0) {
    faults[0] = (weights.isfinite().logical_not_().logical_or_(weights.lt(0))).any();
    faults[1] = weights.sum(-1).eq(0).any();
  }
  const std::int64_t dim = 0;
  if (rows) context.all_reduce(faults, ReduceOp::max, 0, {&dim, 1});
  TORCH_CHECK(!faults[0].item<bool>(), "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(!faults[1].item<bool>(), "invalid multinomial distribution (sum of probabilities <= 0)");
}

// Without replacement: the places of the largest weight / exponential (Efraimidis and Spirakis, "Weighted random sampling
// with a reservoir", 2006), which is how LibTorch draws. With replacement: the inverse of the cumulated weights.
void local_multinomial(const KernelContext& context, std::vector<c10::IValue>& stack) {
  const auto base = stack.size() - context.global_arguments.size();
  const auto weights = stack[base].toTensor().to(at::kDouble);
  const auto count = stack[base + 1].toInt();
  const bool replacement = stack[base + 2].toBool();
  const auto sizes = context.operands[0].sizes;
  TORCH_CHECK(at::isFloatingType(context.operands[0].dtype), "multinomial only supports floating-point dtypes for input, got: ",
              context.operands[0].dtype);
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || count <= sizes.back(), "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  check_weights(context, weights, sizes.size() == 2);
  const auto state = detail::next_philox(context.mesh);
  at::Tensor chosen;
  if (replacement) {
    auto result_sizes = sizes.vec();
    result_sizes.back() = count;
    auto local_sizes = weights.sizes().vec();
    local_sizes.back() = count;
    auto draws = at::empty(local_sizes, weights.options());
    detail::fill_uniform(draws, {*context.decision.results[0].layout, result_sizes, context.mesh, state});
    const auto cumulated = weights.cumsum(-1);
    chosen = at::searchsorted(cumulated, draws.mul_(cumulated.narrow(-1, sizes.back() - 1, 1)), false, true);
  } else {
    auto noise = at::empty_like(weights, at::MemoryFormat::Contiguous);
    detail::fill_uniform(noise, {*context.layout(0), sizes, context.mesh, state});
    // Drawn in [0, 1): 1 minus it is in (0, 1], and a weight of zero comes last.
    noise = noise.neg_().add_(1).log_().neg_().clamp_min_(std::numeric_limits<double>::min());
    chosen = std::get<1>(weights.div(noise).topk(count, -1));
  }
  stack.resize(base);
  stack.emplace_back(chosen);
}
std::optional<Rule> multinomial(const OperatorCall& call) {
  const auto ndim = call.operand(0).ndim();
  if (ndim != 1 && ndim != 2) return std::nullopt;
  if (call.operand(0).sizes.back() == 0) return std::nullopt;
  RuleBuilder builder(call);
  auto dims = builder.letters(0);
  builder.at(dims.back()).kind = Factor::Kind::whole;
  auto sizes = call.operand(0).sizes.vec();
  sizes.back() = call.argument(1).toInt();
  dims.back() = no_factor;
  return builder.sized_result(dims, sizes).by_sizes().kernel(local_multinomial).build();
}

}  // namespace

void detail::add_random_choice_rules() { add_rule("aten::multinomial", multinomial); }

}  // namespace dtensor
