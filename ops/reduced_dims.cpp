#include "ops/reduced_dims.h"

#include <algorithm>
#include <limits>

namespace dtensor {

std::vector<bool> reduced_dims(const c10::IValue* dims, std::int64_t ndim) {
  std::vector<bool> reduced(static_cast<std::size_t>(ndim), true);
  if (!dims || dims->isNone()) return reduced;
  const auto list = dims->isInt() ? std::vector<std::int64_t>{dims->toInt()} : dims->toIntVector();
  if (list.empty()) return reduced;
  std::fill(reduced.begin(), reduced.end(), false);
  for (auto dim : list) {
    dim = OperatorCall::wrap_dim(dim, ndim);
    if (dim >= 0 && dim < ndim) reduced[static_cast<std::size_t>(dim)] = true;
  }
  return reduced;
}

std::vector<std::int64_t> reduced_dim_list(const c10::IValue* dims, std::int64_t ndim) {
  std::vector<std::int64_t> list;
  const auto reduced = reduced_dims(dims, ndim);
  for (std::size_t dim = 0; dim < reduced.size(); ++dim)
    if (reduced[dim]) list.push_back(static_cast<std::int64_t>(dim));
  return list;
}

ReductionShape reduction_shape(const OperatorCall& call, const c10::IValue* dims, bool keepdim, Factor::Kind kind,
                               ReduceOp op) {
  ReductionShape shape{RuleBuilder(call), {}};
  const auto letters = shape.builder.letters(0);
  const auto reduced = reduced_dims(dims, call.operand(0).ndim());
  for (std::size_t dim = 0; dim < letters.size(); ++dim) {
    if (!reduced[dim]) {
      shape.kept.push_back(letters[dim]);
      continue;
    }
    shape.builder.at(letters[dim]).kind = kind;
    shape.builder.at(letters[dim]).op = op;
    if (keepdim) shape.kept.push_back(no_factor);
  }
  return shape;
}

bool flag_argument(const OperatorCall& call, std::size_t argument) {
  return argument < call.arguments.size() && call.argument(argument).isBool() && call.argument(argument).toBool();
}

c10::Scalar extreme_identity(c10::ScalarType dtype, bool maximum) {
  if (dtype == c10::kBool) return !maximum;
  if (c10::isFloatingType(dtype))
    return maximum ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (dtype == c10::kByte) return maximum ? 0 : 255;
  if (dtype == c10::kChar) return maximum ? -128 : 127;
  if (dtype == c10::kShort) return maximum ? -32768 : 32767;
  if (dtype == c10::kInt)
    return maximum ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int32_t>::max();
  return maximum ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

}  // namespace dtensor
