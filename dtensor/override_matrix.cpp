#include "dtensor/dispatch.h"
#include "dtensor/leaf_hook.h"
#include "dtensor/meta.h"
#include "dtensor/override.h"
#include "dtensor/redistribute.h"
#include "dtensor/wished_move.h"
#include "placements/error.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail::override_ {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor product(const at::Tensor& x, const at::Tensor& weight);
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input);

bool wants_graph(const at::Tensor& a, const at::Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
}

at::Tensor product_below(const at::Tensor& x, const at::Tensor& weight) {
  static const OperatorInfo& info = operator_info("aten::matmul", "");
  const at::NoGradGuard no_grad;
  return dispatch_call(info, x, weight);
}

// A pending gradient is reduced once here where both formulas would have to reduce it.
at::Tensor reduced_once(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight) {
  if (!is_dtensor(gradient)) return gradient;
  const Layout* layout = meta(gradient).layout;
  if (!layout->has_partial()) return gradient;
  auto placements = layout->placements();
  std::vector<std::int64_t> mesh_dims;
  const auto sharded = [](const at::Tensor& tensor, int dim) {
    return is_dtensor(tensor) && !meta(tensor).layout->placement(dim).is_replicate();
  };
  for (int dim = 0; dim < layout->mesh_ndim(); ++dim)
    if (layout->placement(dim).is_partial() && (sharded(x, dim) || sharded(weight, dim))) {
      placements[static_cast<std::size_t>(dim)] = Placement();
      mesh_dims.push_back(dim);
    }
  if (mesh_dims.empty()) return gradient;
  const CollectiveReason reason("matmul backward");
  return move_dims(gradient, Layout::of(layout->mesh_pointer(), placements, layout->cut_order()), mesh_dims);
}

// x [..., k] times weight [k, n]
struct MatmulFunction : torch::autograd::Function<MatmulFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return product_below(x, weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto saved = context->get_saved_variables();
    const auto gradient = reduced_once(gradients[0], saved[0], saved[1]);
    variable_list results(2);
    if (context->needs_input_grad(0)) results[0] = product(gradient, saved[1].t());
    // In the weight's memory order, so that AccumulateGrad takes the gradient without a copy, which would reduce it: a
    // weight.t() gets a transposed one.
    if (context->needs_input_grad(1))
      results[1] = saved[1].is_contiguous() ? weight_gradient(saved[0], gradient)
                                            : weight_gradient(gradient, saved[0]).t();
    return results;
  }
};

// gradient [..., n], input [..., k] -> [n, k]
struct WeightGradientFunction : torch::autograd::Function<WeightGradientFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gradient, const at::Tensor& input) {
    context->save_for_backward({gradient, input});
    static const OperatorInfo& info = operator_info("dtensor::weight_gradient", "");
    return dispatch_call(info, gradient, input);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto saved = context->get_saved_variables();
    return {product(saved[1], gradients[0].t()), product(saved[0], gradients[0])};
  }
};

// Equal batch dimensions: a [..., m, k] times b [..., k, n]
struct BatchedMatmulFunction : torch::autograd::Function<BatchedMatmulFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    context->save_for_backward({a, b});
    return product_below(a, b);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto saved = context->get_saved_variables();
    variable_list results(2);
    if (context->needs_input_grad(0)) results[0] = at::matmul(gradients[0], saved[1].transpose(-2, -1));
    if (context->needs_input_grad(1)) results[1] = at::matmul(saved[0].transpose(-2, -1), gradients[0]);
    return results;
  }
};

at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  return wants_graph(x, weight) ? MatmulFunction::apply(x, weight) : product_below(x, weight);
}
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input) {
  if (wants_graph(gradient, input)) return WeightGradientFunction::apply(gradient, input);
  static const OperatorInfo& info = operator_info("dtensor::weight_gradient", "");
  return dispatch_call(info, gradient, input);
}

c10::IntArrayRef batch_sizes(const at::Tensor& tensor) { return tensor.sizes().slice(0, static_cast<std::size_t>(tensor.dim()) - 2); }
// A batch of matrices as a view with these leading dimensions.
at::Tensor expand_batch(const at::Tensor& tensor, std::vector<std::int64_t> sizes) {
  if (batch_sizes(tensor) == c10::IntArrayRef(sizes)) return tensor;
  sizes.push_back(tensor.size(-2));
  sizes.push_back(tensor.size(-1));
  return tensor.expand(sizes);
}
at::Tensor batched_product(const at::Tensor& x, const at::Tensor& weight) {
  return wants_graph(x, weight) ? BatchedMatmulFunction::apply(x, weight) : product_below(x, weight);
}

}  // namespace

void prepare(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) return;
  if (is_dtensor(tensor)) return install_leaf_hook(tensor);
  if (at::GradMode::is_enabled() && tensor.requires_grad())
    throw UnsupportedError(
        std::string(name) +
        ": a plain tensor that requires grad meets a DTensor. Its gradient would be a DTensor: bring it "
        "in with distribute_tensor(tensor, mesh, placements), which is differentiable.");
}

at::Tensor replicated(const at::Tensor& local, const at::Tensor& like) {
  const Meta& data = meta(like);
  return wrap(local, data.layout->replicated(), data.mesh, local.sizes());
}

at::Tensor call_composite(const char* name, std::vector<c10::IValue> arguments) {
  const auto& info = operator_info(name, "");
  info.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, arguments);
  return arguments[0].toTensor();
}

at::Tensor matmul(const at::Tensor& x, const at::Tensor& weight) {
  // Not folded into one batch dimension, nor a vector's product into one of rows, as the stock composite does: a cut of a
  // dimension inside would not survive.
  if (x.dim() >= 3 && weight.dim() >= 3) {
    prepare(x, "matmul");
    prepare(weight, "matmul");
    const auto batch = at::infer_size(batch_sizes(x), batch_sizes(weight));
    return batched_product(expand_batch(x, batch), expand_batch(weight, batch));
  }
  if (x.dim() >= 3 && weight.dim() == 1) return at::matmul(x, weight.unsqueeze(1)).squeeze(-1);
  if (weight.dim() != 2 || x.dim() < 2) return call_composite("aten::matmul", {x, weight});
  prepare(x, "matmul");
  prepare(weight, "matmul");
  const Wish* wish = find_wish(weight, WishFamily::matmul);
  return with_output_wish(product(with_input_wish(x, wish), weight), wish);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (weight.dim() != 2 || x.dim() < 2)
    return call_composite("aten::linear", {x, weight, bias.has_value() ? c10::IValue(*bias) : c10::IValue()});
  auto result = at::matmul(x, weight.t());
  // In place on a pending result a replicated bias is added once (Replicate -> Partial).
  if (bias && bias->defined()) result.add_(*bias);
  return result;
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& x, const at::Tensor& weight,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2, "addmm: both factors must be matrices, got ", x.dim(),
              "-D and ", weight.dim(), "-D");
  auto result = at::matmul(x, weight);
  if (!alpha.equal(1)) result = result * alpha;
  if (beta.equal(0)) return result;
  return result.add_(beta.equal(1) ? self : self * beta);
}

}  // namespace dtensor::detail::override_
