#include "ops/rule_builder.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace dtensor {

namespace {

// One comma-separated part of a text.
struct Part {
  std::string letters;  // without star and dots
  bool batch = false;   // "..."
  bool linear = false;  // "*"
};

std::vector<Part> parts_of(const std::string& text) {
  std::vector<Part> parts(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',')
      parts.emplace_back();
    else if (text[i] == '*')
      parts.back().linear = true;
    else if (text[i] == '.')
      parts.back().batch = true;
    else
      parts.back().letters += text[i];
  }
  return parts;
}

}  // namespace

bool RuleBuilder::fits(const std::string& text, ReduceOp op) {
  const auto arrow = text.find("->");
  TORCH_INTERNAL_ASSERT(arrow != std::string::npos, "a rule's text without '->': ", text);
  const auto operands = parts_of(text.substr(0, arrow)), results = parts_of(text.substr(arrow + 2));
  std::size_t batch_ndim = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (i >= call_->operands.size() || !call_->operands[i].defined) continue;
    const std::size_t ndim = call_->operands[i].sizes.size(), letters = operands[i].letters.size();
    if (operands[i].batch ? ndim < letters : ndim != letters) return false;
    if (operands[i].batch) batch_ndim = std::max(batch_ndim, ndim - letters);
  }
  std::vector<int> batch;  // aligned with the last of the leading dimensions
  std::vector<std::int64_t> batch_sizes(batch_ndim, 1);
  for (std::size_t dim = 0; dim < batch_ndim; ++dim) batch.push_back(factor());
  const auto each_batch_dim = [&](std::size_t i, auto visit) {
    const auto sizes = call_->operands[i].sizes;
    const std::size_t own = sizes.size() - operands[i].letters.size();
    for (std::size_t dim = 0; dim < own; ++dim) visit(batch_ndim - own + dim, sizes[dim]);
  };
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (operands[i].batch && i < call_->operands.size() && call_->operands[i].defined)
      each_batch_dim(i, [&](std::size_t dim, std::int64_t size) {
        if (size != 1) batch_sizes[dim] = size;
      });
  std::map<char, int> letters;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (char c : operands[i].letters) {
      if (letters.count(c)) continue;
      const bool kept = std::any_of(results.begin(), results.end(), [c](const Part& part) {
        return part.letters.find(c) != std::string::npos;
      });
      const auto kind = std::isupper(static_cast<unsigned char>(c)) ? Factor::Kind::whole
                        : kept                                      ? Factor::Kind::pass
                                                                    : Factor::Kind::reduce;
      letters[c] = factor(kind, op);
    }
    if (i >= call_->operands.size() || !call_->operands[i].defined) continue;
    auto& dims = rule_.operands[i];
    if (operands[i].batch)
      each_batch_dim(i, [&](std::size_t dim, std::int64_t size) {
        dims.push_back(size == 1 && batch_sizes[dim] != 1 ? no_factor : batch[dim]);
      });
    for (char c : operands[i].letters) dims.push_back(letters[c]);
    if (operands[i].linear) linear({static_cast<int>(i)});
  }
  for (const auto& part : results) {
    std::vector<int> dims;
    if (part.batch) dims = batch;
    for (char c : part.letters) dims.push_back(letters.count(c) ? letters[c] : no_factor);
    result(std::move(dims));
  }
  return true;
}

RuleBuilder& RuleBuilder::einsum(const std::string& text, ReduceOp op) {
  TORCH_INTERNAL_ASSERT(fits(text, op), call_->name, ": an operand does not have the rank of ", text);
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
        if (other.defined && other_dim >= 0 && other.sizes[static_cast<std::size_t>(other_dim)] != 1)
          larger = true;
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
  rule_.results.push_back({std::move(dims), {}, true});
  return *this;
}

RuleBuilder& RuleBuilder::view_dims(std::vector<ViewDim> dims) {
  rule_.results.back().view_dims = std::move(dims);
  return view();
}

RuleBuilder& RuleBuilder::alike_result(std::vector<int> dims) {
  completed_result(std::move(dims));
  rule_.results.back().alike = true;
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
