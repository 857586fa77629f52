#include "combination_check.h"

#include "comm/run_ranks.h"
#include "dtensor/dtensor.h"
#include "dtensor/explain.h"
#include "dtensor/meta.h"
#include "dtensor/random.h"
#include "placed_input.h"
#include "placements/error.h"
#include "placements/shard_math.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

namespace dtensor::brute {

Tensors run_sample(const Sample& sample, const Tensors& inputs) {
  if (sample.program) return sample.program(inputs);
  auto arguments = sample.arguments;
  std::size_t next = 0;
  for (auto& value : arguments) {
    if (value.isTensor()) {
      value = inputs[next++];
    } else if (value.isTensorList()) {
      const auto count = value.toTensorList().size();
      value = Tensors(inputs.begin() + static_cast<std::ptrdiff_t>(next),
                      inputs.begin() + static_cast<std::ptrdiff_t>(next + count));
      next += count;
    }
  }
  return call_operator(sample.op, std::move(arguments));
}

namespace {

constexpr std::uint64_t random_seed = 7;

bool differentiable(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

// What is handed to the operator: an in-place one writes to a copy, so that leaves stay leaves.
Tensors arguments_of(const Sample& sample, const Tensors& leaves) {
  auto given = leaves;
  if (sample.in_place) given[0] = given[0].clone();
  return given;
}

at::Tensor weight_for(const at::Tensor& result) {
  auto weight = values(result.sizes().vec(), -2, 2);
  if (at::isComplexType(result.scalar_type()))
    return at::complex(weight, values(result.sizes().vec(), -2, 2));
  return weight.to(result.scalar_type());
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (!differentiable(a)) return at::equal(a, b);
  const auto x = at::isComplexType(a.scalar_type()) ? at::view_as_real(a.resolve_conj()) : a;
  const auto y = at::isComplexType(b.scalar_type()) ? at::view_as_real(b.resolve_conj()) : b;
  const double tolerance =
      a.scalar_type() == at::kDouble || a.scalar_type() == at::kComplexDouble ? 1e-10 : 1e-4;
  return at::allclose(x, y, tolerance, tolerance, /*equal_nan=*/true);
}

std::string show(const at::Tensor& tensor) {
  if (tensor.numel() > 24) return fmt::format("a tensor [{}]", fmt::join(tensor.sizes(), ", "));
  if (at::isComplexType(tensor.scalar_type())) return show(at::view_as_real(tensor.resolve_conj()));
  const auto flat = tensor.resolve_neg().to(at::kDouble).contiguous();
  const c10::ArrayRef<double> elements(flat.data_ptr<double>(), static_cast<std::size_t>(flat.numel()));
  return fmt::format("{:.6g}", fmt::join(elements, " "));
}

// Whether two strides of one shape order the dimensions alike.
bool same_order(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (std::size_t j = i + 1; j < sizes.size(); ++j)
      if (sizes[i] > 1 && sizes[j] > 1 && (a[i] < a[j]) != (b[i] < b[j])) return false;
  return true;
}

class Findings {
 public:
  template <typename... Parts>
  void add(fmt::format_string<Parts...> format, Parts&&... parts) {
    text_ += (text_.empty() ? "" : "; ") + fmt::format(format, std::forward<Parts>(parts)...);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void compare_geometry(const at::Tensor& result, const at::Tensor& expected, std::size_t index, bool strides,
                      Findings& findings) {
  const DTensor tensor(result);
  const auto& layout = tensor.layout();
  if (result.sizes() != expected.sizes())
    findings.add("result {} has sizes [{}], not [{}]", index, fmt::join(result.sizes(), ", "),
                 fmt::join(expected.sizes(), ", "));
  if (result.scalar_type() != expected.scalar_type())
    findings.add("result {} has dtype {}, not {}", index, c10::toString(result.scalar_type()),
                 c10::toString(expected.scalar_type()));
  if (result.sizes() != expected.sizes()) return;
  if (strides && expected.numel() > 0 &&
      (result.is_contiguous() != expected.is_contiguous() ||
       !same_order(result.sizes(), result.strides(), expected.strides())))
    findings.add("result {} has strides [{}], not [{}]", index, fmt::join(result.strides(), ", "),
                 fmt::join(expected.strides(), ", "));
  const auto& local = detail::meta(result).local;
  const auto sizes = shard_math::local_sizes(layout, expected.sizes(), tensor.mesh().coordinate());
  if (local.sizes() != c10::IntArrayRef(sizes))
    findings.add("the local part of result {} ({}) has sizes [{}], not [{}]", index, layout.to_string(),
                 fmt::join(local.sizes(), ", "), fmt::join(sizes, ", "));
  else if (local.numel() > 0 && !same_order(local.sizes(), local.strides(), result.strides()))
    findings.add("the local part of result {} has strides [{}], the whole [{}]", index,
                 fmt::join(local.strides(), ", "), fmt::join(result.strides(), ", "));
}

void compare_values(const at::Tensor& value, const at::Tensor& expected, const std::string& what,
                    Findings& findings) {
  if (!close(value, expected)) findings.add("{} is {}, not {}", what, show(value), show(expected));
}

void compare_memory(const at::Tensor& result, const Tensors& inputs, const std::vector<bool>& aliases,
                    std::size_t index, bool view, Findings& findings) {
  const auto& data = detail::meta(result);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_dtensor(inputs[i]) || result.is_same(inputs[i])) continue;
    const auto& source = detail::meta(inputs[i]).local;
    if (data.local.numel() == 0 || source.numel() == 0) continue;
    const bool shares = data.local.storage().is_alias_of(source.storage());
    if (shares && !aliases[i]) findings.add("result {} shares memory with input {}", index, i);
    if (!shares && view && aliases[i] && !data.gathered)
      findings.add("result {} is a view that does not share memory with input {} and does not say so", index,
                   i);
  }
}

// The placement of the gradient given to backward: another one each time.
Placements gradient_placements(const at::Tensor& weight, const DeviceMesh& mesh, std::uint64_t number) {
  const auto kinds = placements_for(weight, {});
  Placements result;
  for (int dim = 0; dim < mesh.ndim(); ++dim) {
    result.push_back(kinds[number % kinds.size()]);
    number /= kinds.size();
  }
  return result;
}

void check_backward(const Tensors& results, const Tensors& leaves, const Reference& reference,
                    const DeviceMesh& mesh, std::uint64_t number, Findings& findings) {
  Tensors outputs, weights;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!reference.weights[i].defined() || !results[i].requires_grad()) continue;
    outputs.push_back(results[i]);
    const auto& weight = reference.weights[i];
    weights.push_back(placed(weight, mesh, gradient_placements(weight, mesh, number), number * 131 + i));
  }
  if (outputs.empty()) return;
  torch::autograd::backward(outputs, weights);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    const auto& gradient = leaves[i].grad();
    const auto& expected = reference.gradients[i];
    if (gradient.defined() != expected.defined()) {
      findings.add("input {} {} a gradient", i, gradient.defined() ? "has" : "lacks");
    } else if (gradient.defined()) {
      if (!is_dtensor(gradient)) {
        findings.add("the gradient of input {} is plain", i);
        continue;
      }
      compare_values(DTensor(gradient).full_tensor(), expected,
                     fmt::format("the gradient of input {} (given {})", i,
                                 dtensor::to_string(DTensor(weights[0]).placements())),
                     findings);
    }
  }
}

Tensors require_gradients(const Sample& sample, Tensors leaves) {
  if (sample.gradient)
    for (auto& leaf : leaves)
      if (differentiable(leaf)) leaf.set_requires_grad(true);
  return leaves;
}

// Whether the operator has a derivative at all; fills weights and gradients of the reference.
void differentiate(const Tensors& results, const Tensors& leaves, Reference& reference) {
  Tensors outputs, weights;
  reference.weights.resize(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad()) continue;
    reference.weights[i] = weight_for(results[i]);
    outputs.push_back(results[i]);
    weights.push_back(reference.weights[i]);
  }
  if (outputs.empty()) return;
  try {
    torch::autograd::backward(outputs, weights);
  } catch (const c10::Error& error) {
    if (std::string(error.what_without_backtrace()).find("not implemented") == std::string::npos) throw;
    reference.weights.clear();
    return;
  }
  for (const auto& leaf : leaves) reference.gradients.push_back(leaf.grad());
}

Reference reference_on_mesh_of_one(const Sample& sample) {
  Reference reference;
  run_ranks(1, [&](int) {
    const auto mesh = init_device_mesh(at::kCPU, {1}, {"one"});
    Tensors leaves;
    for (const auto& input : sample.inputs()) leaves.push_back(placed(input, mesh, {Replicate()}, 0));
    leaves = require_gradients(sample, leaves);
    manual_seed(random_seed);
    const auto results = run_sample(sample, arguments_of(sample, leaves));
    Tensors outputs, weights;
    for (const auto& result : results) {
      reference.results.push_back(DTensor(result.detach()).full_tensor());
      reference.aliases.emplace_back(leaves.size(), false);
      reference.weights.emplace_back();
      if (!result.requires_grad()) continue;
      reference.weights.back() = weight_for(reference.results.back());
      outputs.push_back(result);
      weights.push_back(placed(reference.weights.back(), mesh, {Replicate()}, 0));
    }
    if (outputs.empty()) return;
    torch::autograd::backward(outputs, weights);
    for (const auto& leaf : leaves)
      reference.gradients.push_back(leaf.grad().defined() ? DTensor(leaf.grad()).full_tensor()
                                                          : at::Tensor());
  });
  return reference;
}

}  // namespace

Reference make_reference(const Sample& sample) {
  if (sample.mesh_of_one) return reference_on_mesh_of_one(sample);
  Reference reference;
  Tensors leaves;
  for (const auto& input : sample.inputs()) leaves.push_back(input.detach().clone());
  leaves = require_gradients(sample, leaves);
  const auto given = arguments_of(sample, leaves);
  const auto results = run_sample(sample, given);
  for (const auto& result : results) {
    reference.results.push_back(result.detach().clone());
    // Strides as they are: clone() would make a view dense.
    if (result.numel() > 0) reference.results.back() = result.detach();
    auto& aliases = reference.aliases.emplace_back();
    for (const auto& input : given) aliases.push_back(result.is_alias_of(input));
  }
  differentiate(results, leaves, reference);
  return reference;
}

std::string check_combination(const Sample& sample, const Reference& reference,
                              const Combination& combination, const DeviceMesh& mesh, std::uint64_t number,
                              Trace& trace) {
  Findings findings;
  const auto full = sample.inputs();
  Tensors leaves;
  for (std::size_t i = 0; i < full.size(); ++i)
    leaves.push_back(combination[i] ? placed(full[i], mesh, *combination[i], number * 17 + i) : full[i]);
  if (!reference.gradients.empty())
    for (std::size_t i = 0; i < full.size(); ++i)
      if (combination[i] && reference.gradients[i].defined()) leaves[i].set_requires_grad(true);
  Tensors given, results;
  const Explain explain;
  if (sample.mesh_of_one) manual_seed(random_seed);
  given = arguments_of(sample, leaves);
  results = run_sample(sample, given);
  if (results.size() != reference.results.size())
    throw UnsupportedError(fmt::format("{} results, not {}", results.size(), reference.results.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& expected = reference.results[i];
    if (!is_dtensor(results[i])) {  // a read-out
      compare_values(results[i], expected, fmt::format("result {} (plain)", i), findings);
      continue;
    }
    if (!sample.mesh_of_one) compare_geometry(results[i], expected, i, !sample.free_strides, findings);
    compare_memory(results[i], given, reference.aliases[i], i, sample.view, findings);
    compare_values(DTensor(results[i].detach()).full_tensor(), expected, fmt::format("result {}", i),
                   findings);
  }
  if (sample.in_place) {
    if (DTensor(given[0]).placements() != *combination[0])
      findings.add("what was written is now placed {}", dtensor::to_string(DTensor(given[0]).placements()));
    if (!sample.program && !results[0].is_same(given[0])) findings.add("the result is not what was written");
  }
  if (!reference.gradients.empty()) check_backward(results, leaves, reference, mesh, number, findings);
  for (const auto& op : explain.operators())
    (op.fallback ? trace.without_rule : trace.with_rule).insert(op.name);
  return findings.text();
}

}  // namespace dtensor::brute
