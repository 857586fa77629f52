// Composite operators that this library replaces before they decompose, where the whole shape matters. Each serves
// AutogradPrivateUse2 (training) and PrivateUse2 (inference mode, where the autograd keys are off).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymInt.h>

#include <optional>

namespace dtensor::detail::override_ {

// override_matrix.cpp
at::Tensor matmul(const at::Tensor& x, const at::Tensor& weight);
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor addmm(const at::Tensor& self, const at::Tensor& x, const at::Tensor& weight, const at::Scalar& beta,
                 const at::Scalar& alpha);

// override_norm.cpp
at::Tensor layer_norm(const at::Tensor& x, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool cudnn_enable);
at::Tensor rms_norm(const at::Tensor& x, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                    std::optional<double> eps);

// override_embedding.cpp
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding_idx, bool scale, bool sparse);
// For PrivateUse2: honours wishes in inference mode only, else they would apply twice.
at::Tensor embedding_below(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding_idx, bool scale,
                           bool sparse);

// override_dropout.cpp
at::Tensor dropout(const at::Tensor& x, double p, bool train);
at::Tensor feature_dropout(const at::Tensor& x, double p, bool train);
at::Tensor feature_alpha_dropout(const at::Tensor& x, double p, bool train);
at::Tensor& feature_dropout_(at::Tensor& x, double p, bool train);
at::Tensor& feature_alpha_dropout_(at::Tensor& x, double p, bool train);

// override_attention.cpp
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa);

// override_loss.cpp
at::Tensor cross_entropy_loss(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                              std::int64_t reduction, c10::SymInt ignore_index, double label_smoothing);

// override_selection.cpp: backward formula of max, topk, sort, ...: the stock one scatters into plain zeros.
at::Tensor value_selecting_reduction_backward(const at::Tensor& gradient, std::int64_t dim, const at::Tensor& indices,
                                              c10::SymIntArrayRef sizes, bool keepdim);
at::Tensor cummaxmin_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& indices,
                              std::int64_t dim);

// override_values.cpp: composites that read the values of an argument.
std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& indices_or_sections, std::int64_t dim);
at::Tensor ctc_loss_of_lists(const at::Tensor& log_probabilities, const at::Tensor& targets, c10::IntArrayRef input_lengths,
                             c10::IntArrayRef target_lengths, std::int64_t blank, std::int64_t reduction,
                             bool zero_infinity);
at::Tensor ctc_loss(const at::Tensor& log_probabilities, const at::Tensor& targets, const at::Tensor& input_lengths,
                    const at::Tensor& target_lengths, std::int64_t blank, std::int64_t reduction, bool zero_infinity);
at::Tensor max_pool1d(const at::Tensor& self, c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                      c10::IntArrayRef padding, c10::IntArrayRef dilation, bool ceil_mode);
at::Tensor one_hot(const at::Tensor& self, std::int64_t num_classes);
// Formulas of LibTorch that build plain tensors.
at::Tensor trace_backward(const at::Tensor& gradient, c10::SymIntArrayRef sizes);
at::Tensor linalg_matrix_exp(const at::Tensor& self);
// Formulas of LibTorch that write through views of their inputs: those must not move, so the inputs come whole.
void from_whole_inputs(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Called by each override for its tensor arguments: arms the leaf hook; refuses a plain tensor that requires grad.
void prepare(const at::Tensor& tensor, const char* name);
// A tensor that this rank made and that every rank makes alike, on the mesh of `like`.
at::Tensor replicated(const at::Tensor& local, const at::Tensor& like);
// The stock composite kernel.
at::Tensor call_composite(const char* name, std::vector<c10::IValue> arguments);

}  // namespace dtensor::detail::override_
