#include "ops/rule_builder.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace dtensor {

RuleBuilder& RuleBuilder::einsum(const std::string& text, ReduceOp op) {
  const auto arrow = text.find("->");
  TORCH_INTERNAL_ASSERT(arrow != std::string::npos, "einsum text without '->': ", text);
  const std::string left = text.substr(0, arrow), right = text.substr(arrow + 2);
  std::map<char, int> letters;
  std::size_t operand = 0;
  for (char c : left) {
    if (c == ',') {
      ++operand;
      continue;
    }
    if (!letters.count(c)) {
      const bool kept = right.find(c) != std::string::npos;
      const auto kind = std::isupper(static_cast<unsigned char>(c)) ? Factor::Kind::whole
                        : kept                                      ? Factor::Kind::pass
                                                                    : Factor::Kind::reduce;
      letters[c] = factor(kind, op);
    }
    rule_.operands[operand].push_back(letters[c]);
  }
  for (std::size_t i = 0; i <= operand; ++i)
    TORCH_INTERNAL_ASSERT(!call_->operands[i].defined || call_->operands[i].sizes.size() == rule_.operands[i].size(),
                          call_->name, ": operand ", i, " does not have the rank of ", text);
  std::vector<int> dims;
  auto finish = [&] { rule_.results.push_back({dims, {}, false, true}), dims.clear(); };
  for (char c : right) {
    if (c == ',')
      finish();
    else
      dims.push_back(letters.count(c) ? letters[c] : no_factor);
  }
  finish();
  return *this;
}

int RuleBuilder::factor(Factor::Kind kind, ReduceOp op) {
  rule_.factors.push_back({kind, op, false, 0});
  return static_cast<int>(rule_.factors.size()) - 1;
}

int RuleBuilder::even_factor(std::int64_t size) {
  rule_.factors.push_back({Factor::Kind::pass, ReduceOp::sum, true, size});
  return static_cast<int>(rule_.factors.size()) - 1;
}

RuleBuilder& RuleBuilder::pointwise(std::size_t operand_count, std::size_t result_count) {
  std::int64_t ndim = 0;
  for (std::size_t i = 0; i < operand_count; ++i)
    if (call_->operands[i].defined) ndim = std::max(ndim, call_->operands[i].ndim());
  std::vector<int> out;
  std::vector<bool> broadcast_one;  // every operand has size 1 there
  for (std::int64_t dim = 0; dim < ndim; ++dim) out.push_back(factor());
  for (std::size_t i = 0; i < operand_count; ++i) {
    const Operand& operand = call_->operands[i];
    auto& dims = rule_.operands[i];
    dims.clear();
    if (!operand.defined) continue;
    for (std::int64_t dim = 0; dim < operand.ndim(); ++dim) {
      const auto out_dim = static_cast<std::size_t>(dim + ndim - operand.ndim());
      // A size of 1 broadcasts unless nothing there is larger.
      bool larger = false;
      for (std::size_t j = 0; j < operand_count; ++j) {
        const Operand& other = call_->operands[j];
        const std::int64_t other_dim = static_cast<std::int64_t>(out_dim) - (ndim - other.ndim());
        if (other.defined && other_dim >= 0 && other.sizes[static_cast<std::size_t>(other_dim)] != 1) larger = true;
      }
      dims.push_back(operand.sizes[static_cast<std::size_t>(dim)] == 1 && larger ? no_factor : out[out_dim]);
    }
  }
  for (std::size_t r = 0; r < result_count; ++r) result(out);
  return *this;
}

RuleBuilder& RuleBuilder::operand(std::size_t index, std::vector<int> dims) {
  rule_.operands[index] = std::move(dims);
  return *this;
}
RuleBuilder& RuleBuilder::result(std::vector<int> dims) {
  rule_.results.push_back({std::move(dims), {}, false, true});
  return *this;
}
RuleBuilder& RuleBuilder::completed_result(std::vector<int> dims) {
  rule_.results.push_back({std::move(dims), {}, true, true});
  return *this;
}
RuleBuilder& RuleBuilder::sized_result(std::vector<int> dims, std::vector<std::int64_t> sizes) {
  rule_.results.push_back({std::move(dims), std::move(sizes), false, true});
  return *this;
}
RuleBuilder& RuleBuilder::linear(std::vector<int> operands) {
  rule_.linear.push_back(std::move(operands));
  return *this;
}
RuleBuilder& RuleBuilder::passes_any_pending() {
  rule_.passes_any_pending = true;
  return *this;
}
RuleBuilder& RuleBuilder::kernel(LocalKernel kernel_) {
  rule_.kernel = kernel_;
  return *this;
}
RuleBuilder& RuleBuilder::by_sizes() {
  rule_.by_sizes = true;
  return *this;
}
RuleBuilder& RuleBuilder::view() {
  rule_.view = true;
  return *this;
}
RuleBuilder& RuleBuilder::list_result() {
  rule_.list_result = true;
  return *this;
}
RuleBuilder& RuleBuilder::size_argument(int argument, int result_) {
  rule_.size_arguments.emplace_back(argument, result_);
  return *this;
}

std::vector<int> RuleBuilder::letters(std::size_t index, Factor::Kind kind) {
  std::vector<int> dims;
  for (std::int64_t dim = 0; dim < call_->operands[index].ndim(); ++dim) dims.push_back(factor(kind));
  rule_.operands[index] = dims;
  return dims;
}

std::optional<std::vector<int>> RuleBuilder::letters_whole_along(std::size_t dim_argument) {
  auto dims = letters(0);
  if (dims.empty()) return dims;
  const auto ndim = call_->operand(0).ndim();
  const auto dim = OperatorCall::wrap_dim(call_->argument(dim_argument).toInt(), ndim);
  if (dim < 0 || dim >= ndim) return std::nullopt;
  at(dims[static_cast<std::size_t>(dim)]).kind = Factor::Kind::whole;
  return dims;
}

}  // namespace dtensor
