#include "comm/reduction_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace dtensor::detail {

namespace {

template <typename T>
T sum_of(T a, T b) {
  return static_cast<T>(a + b);
}
template <typename T>
T product_of(T a, T b) {
  if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(unsigned)) return static_cast<T>(unsigned{a} * unsigned{b});
  return static_cast<T>(a * b);
}
template <typename T>
T larger_of(T a, T b) {
  return a > b || a != a ? a : b;  // NaN wins
}
template <typename T>
T smaller_of(T a, T b) {
  return a < b || a != a ? a : b;
}

// Half and BFloat16 are computed in float and rounded at each step; signed integers wrap around as LibTorch's do.
template <typename T, bool is_integer = std::is_integral_v<T>>
struct Arithmetic {
  using type = T;
};
template <typename T>
struct Arithmetic<T, true> {
  using type = std::make_unsigned_t<T>;
};

template <typename T, T (*combine)(T, T)>
void accumulate(T* __restrict total, const T* __restrict part, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) total[i] = combine(total[i], part[i]);
}

// In blocks that stay in the first-level cache, through a buffer of its own: `result` may be one of the parts.
template <typename T, T (*combine)(T, T)>
void reduce_blocks(const std::vector<const void*>& parts, std::int64_t count, T* result) {
  constexpr std::int64_t block = 8192 / sizeof(T);
  alignas(64) T total[block];
  for (std::int64_t start = 0; start < count; start += block) {
    const auto length = std::min(block, count - start);
    const auto bytes = static_cast<std::size_t>(length) * sizeof(T);
    std::memcpy(static_cast<void*>(total), static_cast<const T*>(parts[0]) + start, bytes);
    for (std::size_t i = 1; i < parts.size(); ++i) {
      accumulate<T, combine>(total, static_cast<const T*>(parts[i]) + start, length);
    }
    std::memcpy(static_cast<void*>(result + start), total, bytes);
  }
}

template <typename T>
void divide(T* values, std::int64_t count, std::size_t divisor) {
  using Divisor = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
  const auto by = static_cast<Divisor>(divisor);
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / by);
}

template <typename T>
void reduce_as(ReduceOp op, const std::vector<const void*>& parts, std::int64_t count, void* result) {
  using Wrapping = typename Arithmetic<T>::type;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      reduce_blocks<Wrapping, sum_of<Wrapping>>(parts, count, static_cast<Wrapping*>(result));
      if (op == ReduceOp::avg) divide(static_cast<T*>(result), count, parts.size());
      return;
    case ReduceOp::product:
      return reduce_blocks<Wrapping, product_of<Wrapping>>(parts, count, static_cast<Wrapping*>(result));
    case ReduceOp::max:
      return reduce_blocks<T, larger_of<T>>(parts, count, static_cast<T*>(result));
    case ReduceOp::min:
      return reduce_blocks<T, smaller_of<T>>(parts, count, static_cast<T*>(result));
  }
}

}  // namespace

bool has_reduction_kernel(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

void reduce_elements(at::ScalarType dtype, ReduceOp op, const std::vector<const void*>& parts, std::int64_t count,
                     void* result) {
  switch (dtype) {
    case at::kFloat:
      return reduce_as<float>(op, parts, count, result);
    case at::kDouble:
      return reduce_as<double>(op, parts, count, result);
    case at::kBFloat16:
      return reduce_as<c10::BFloat16>(op, parts, count, result);
    case at::kHalf:
      return reduce_as<c10::Half>(op, parts, count, result);
    case at::kByte:
      return reduce_as<std::uint8_t>(op, parts, count, result);
    case at::kChar:
      return reduce_as<std::int8_t>(op, parts, count, result);
    case at::kShort:
      return reduce_as<std::int16_t>(op, parts, count, result);
    case at::kInt:
      return reduce_as<std::int32_t>(op, parts, count, result);
    case at::kLong:
      return reduce_as<std::int64_t>(op, parts, count, result);
    default:
      throw std::logic_error("no reduction kernel for this dtype");
  }
}

}  // namespace dtensor::detail
