// Composite operators that read the values of an argument, in C++ and past the dispatcher: the values are read out here, the
// same on every rank, and the form that takes numbers does the work. Besides, formulas that build plain tensors or write
// through views.
#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "dtensor/override.h"
#include "dtensor/redistribute.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor::detail::override_ {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  const auto whole = is_dtensor(tensor) ? DTensor(tensor.detach()).full_tensor() : tensor.detach();
  const auto values = whole.to(at::kCPU, at::kLong).contiguous();
  return {values.const_data_ptr<std::int64_t>(), values.const_data_ptr<std::int64_t>() + values.numel()};
}

// The upper right block of exp([[a, g], [0, a]]): the derivative of the exponential at a along g.
at::Tensor exponential_derivative(const at::Tensor& a, const at::Tensor& g) {
  const auto n = a.size(-1);
  const auto blocks = at::cat({at::cat({a, g}, -1), at::cat({at::zeros_like(a), a}, -1)}, -2);
  return at::linalg_matrix_exp(blocks).narrow(-2, 0, n).narrow(-1, n, n);
}

struct MatrixExponential : torch::autograd::Function<MatrixExponential> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a) {
    context->save_for_backward({a});
    const at::NoGradGuard no_grad;
    return dispatch_call(operator_info("aten::linalg_matrix_exp", ""), a);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {exponential_derivative(context->get_saved_variables()[0].mH(), gradients[0])};
  }
};

}  // namespace

std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& indices_or_sections,
                                     std::int64_t dim) {
  TORCH_CHECK(indices_or_sections.scalar_type() == at::kLong,
              "tensor_split expected tensor_indices_or_sections to have dtype of long, but got ",
              indices_or_sections.scalar_type());
  const auto values = numbers(indices_or_sections);
  if (indices_or_sections.dim() == 0) return at::tensor_split(self, values[0], dim);
  TORCH_CHECK(indices_or_sections.dim() == 1,
              "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or one-dimensional "
              "tensor, but got "
              "a tensor with ",
              indices_or_sections.dim(), " dims");
  return at::tensor_split(self, values, dim);
}

// The stock form divides by a plain tensor of lengths for the mean.
at::Tensor ctc_loss_of_lists(const at::Tensor& log_probabilities, const at::Tensor& targets,
                             c10::IntArrayRef input_lengths, c10::IntArrayRef target_lengths,
                             std::int64_t blank, std::int64_t reduction, bool zero_infinity) {
  static const auto& info = operator_info("aten::ctc_loss", "IntList");
  torch::jit::Stack stack{log_probabilities,    targets, input_lengths.vec(),
                          target_lengths.vec(), blank,   std::int64_t{at::Reduction::None},
                          zero_infinity};
  info.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  const at::Tensor losses = stack[0].toTensor();
  if (reduction == at::Reduction::Sum) return losses.sum();
  if (reduction != at::Reduction::Mean || !is_dtensor(losses)) return losses;
  auto lengths = at::tensor(target_lengths, meta(losses).local.options())
                     .clamp_min(1)
                     .expand(losses.sizes())
                     .contiguous();
  return (losses / replicated(lengths, losses)).mean();
}

at::Tensor ctc_loss(const at::Tensor& log_probabilities, const at::Tensor& targets,
                    const at::Tensor& input_lengths, const at::Tensor& target_lengths, std::int64_t blank,
                    std::int64_t reduction, bool zero_infinity) {
  return at::ctc_loss(log_probabilities, targets, numbers(input_lengths), numbers(target_lengths), blank,
                      reduction, zero_infinity);
}

at::Tensor max_pool1d(const at::Tensor& self, c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                      c10::IntArrayRef padding, c10::IntArrayRef dilation, bool ceil_mode) {
  return std::get<0>(at::max_pool1d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode));
}

at::Tensor one_hot(const at::Tensor& self, std::int64_t num_classes) {
  TORCH_CHECK(self.scalar_type() == at::kLong,
              "one_hot is only applicable to index tensor of type LongTensor.");
  if (self.numel() == 0) {
    TORCH_CHECK(num_classes > 0, "Can not infer total number of classes from empty tensor.");
  } else {
    TORCH_CHECK(self.min().item<std::int64_t>() >= 0, "Class values must be non-negative.");
    const auto largest = self.max().item<std::int64_t>();
    if (num_classes == -1) num_classes = largest + 1;
    TORCH_CHECK(num_classes > largest, "Class values must be smaller than num_classes.");
  }
  const auto classes = at::arange(num_classes, at::TensorOptions(self.device()).dtype(at::kLong));
  return self.unsqueeze(-1).eq(is_dtensor(self) ? replicated(classes, self) : classes).to(at::kLong);
}

at::Tensor trace_backward(const at::Tensor& gradient, c10::SymIntArrayRef sizes) {
  TORCH_CHECK(sizes.size() == 2, "expected matrix input");
  const auto diagonal = at::eye(sizes[0].expect_int(), sizes[1].expect_int(), gradient.options());
  return (is_dtensor(gradient) ? replicated(diagonal, gradient) : diagonal) * gradient;
}

at::Tensor linalg_matrix_exp(const at::Tensor& self) {
  prepare(self, "linalg_matrix_exp");
  return MatrixExponential::apply(self);
}

void from_whole_inputs(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  for (auto argument = stack->end() - static_cast<std::ptrdiff_t>(count); argument != stack->end();
       ++argument)
    if (argument->isTensor() && is_dtensor(argument->toTensor())) {
      const at::Tensor tensor = argument->toTensor();
      prepare(tensor, op.schema().name().c_str());
      *argument = redistribute(tensor, meta(tensor).layout->replicated());
    }
  op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
}

}  // namespace dtensor::detail::override_
