#include "dtensor/decision_key.h"

#include <c10/util/hash.h>

namespace dtensor::detail {
namespace {

std::uint64_t word(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// Rank, dtype and which dimensions have size 1, in one word; contiguous tensors (nearly all) say so in a bit, others add
// a word with their memory order.
void pack_operand(const Operand& operand, DecisionKey& key) {
  if (!operand.defined) {
    key.push_back(1);
    return;
  }
  std::uint64_t ones = 0;
  bool contiguous = true;
  std::int64_t expected = 1;
  for (std::size_t i = operand.sizes.size(); i-- > 0;) {
    if (operand.sizes[i] == 1) {
      ones |= std::uint64_t{1} << (i < 31 ? i : 31);
      continue;
    }
    if (operand.strides.size() != operand.sizes.size() || operand.strides[i] != expected) contiguous = false;
    expected *= operand.sizes[i];
  }
  key.push_back(word(operand.layout));
  key.push_back((ones << 32) | (static_cast<std::uint64_t>(operand.sizes.size()) << 16) |
                (static_cast<std::uint64_t>(operand.dtype) << 8) | (contiguous ? 2U : 4U));
  if (contiguous || operand.strides.size() != operand.sizes.size()) return;
  std::uint64_t order = 0;
  for (int dim : memory_order(operand.sizes, operand.strides)) order = order * 67 + static_cast<std::uint64_t>(dim) + 1;
  key.push_back(order);
}

void pack_argument(const c10::IValue& value, bool numbers, DecisionKey& key) {
  const auto push_list = [&key](std::uint64_t tag, const auto& list, auto convert) {
    key.push_back((tag << 32) | list.size());
    for (const auto& element : list) key.push_back(static_cast<std::uint64_t>(convert(element)));
  };
  const auto same = [](const auto& element) { return element; };
  if (value.isNone()) {
    key.push_back(std::uint64_t{9} << 32);
  } else if (value.isInt()) {
    key.push_back(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    key.push_back(value.toBool() ? 1 : 0);
  } else if (value.isIntList()) {
    push_list(3, value.toIntVector(), same);
  } else if (value.isBoolList()) {
    push_list(4, value.toBoolList().vec(), same);
  } else if (value.isString()) {
    key.push_back(std::hash<std::string>()(value.toStringRef()));
  } else if (numbers && value.isDouble()) {
    key.push_back(c10::get_hash(value.toDouble()));
  } else {
    key.push_back(std::uint64_t{8} << 32);
  }
}

}  // namespace

void pack_key(const Call& call, DecisionKey& key) {
  key.push_back(word(&call.info));
  key.push_back((static_cast<std::uint64_t>(call.operands.size()) << 8) | 1);
  key.push_back(word(call.mesh->layout));
  for (const auto& operand : call.operands) pack_operand(operand, key);
  const bool numbers = call.info.rule && call.info.rule->scalars_matter;
  for (std::size_t i = 0; i < call.info.arguments.size(); ++i) {
    const auto kind = call.info.arguments[i];
    if (kind == OperatorInfo::Argument::keyed || (numbers && kind == OperatorInfo::Argument::number))
      pack_argument(call.stack[call.base + i], numbers, key);
  }
}

void pack_sizes(const Call& call, DecisionKey& key) {
  for (const auto& operand : call.operands) {
    for (auto size : operand.sizes) key.push_back(static_cast<std::uint64_t>(size));
    for (auto stride : operand.strides) key.push_back(static_cast<std::uint64_t>(stride));
  }
  for (std::size_t i = 0; i < call.info.arguments.size(); ++i)
    if (call.info.arguments[i] == OperatorInfo::Argument::bound) pack_argument(call.stack[call.base + i], false, key);
}

}  // namespace dtensor::detail
