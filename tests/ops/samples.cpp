#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <random>

namespace dtensor::brute {
namespace {

c10::OperatorHandle handle_of(const std::string& op) {
  const auto dot = op.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
}

std::string text(const c10::IValue& value) {
  if (value.isTensor()) return fmt::format("[{}]", fmt::join(value.toTensor().sizes(), ", "));
  if (value.isTensorList()) {
    std::string all = "{";
    for (const auto& tensor : value.toTensorVector()) all += (all.size() > 1 ? ", " : "") + text(tensor);
    return all + "}";
  }
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isInt()) return fmt::format("{}", value.toInt());
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isIntList()) return fmt::format("{{{}}}", fmt::join(value.toIntVector(), ", "));
  if (value.isNone()) return "none";
  return "...";
}

std::mt19937_64& generator() {
  static std::mt19937_64 engine(2024);
  return engine;
}

}  // namespace

Tensors call_operator(const std::string& op, std::vector<c10::IValue> arguments) {
  const auto handle = handle_of(op);
  const auto& schema = handle.schema().arguments();
  for (std::size_t i = arguments.size(); i < schema.size(); ++i)
    arguments.push_back(schema[i].default_value().value_or(c10::IValue()));
  handle.callBoxed(arguments);
  Tensors results;
  for (const auto& value : arguments) {
    if (value.isTensor())
      results.push_back(value.toTensor());
    else if (value.isTensorList())
      for (const auto& tensor : value.toTensorVector()) results.push_back(tensor);
    else
      results.push_back(value.isDouble() ? at::scalar_tensor(value.toDouble(), at::kDouble)
                        : value.isBool() ? at::scalar_tensor(value.toBool(), at::kBool)
                                         : at::scalar_tensor(value.toInt(), at::kLong));
  }
  return results;
}

Tensors Sample::inputs() const {
  Tensors all;
  for (const auto& value : arguments) {
    if (value.isTensor())
      all.push_back(value.toTensor());
    else if (value.isTensorList())
      for (const auto& tensor : value.toTensorVector()) all.push_back(tensor);
  }
  return all;
}

std::string Sample::label() const {
  std::vector<std::string> texts;
  for (const auto& value : arguments) texts.push_back(text(value));
  return fmt::format("{}({})", op, fmt::join(texts, ", "));
}

Sample& Sample::refuses_pending_self() {
  return refuses([](const Combination& combination) {
    for (const auto& placement : *combination[0])
      if (placement.is_partial()) return true;
    return false;
  });
}

Sample sample(std::string op, std::vector<c10::IValue> arguments, const std::vector<c10::IValue>& rest) {
  Sample result;
  for (const auto& value : rest) arguments.push_back(value);
  const auto& schema = handle_of(op).schema().arguments();
  result.in_place = schema[0].alias_info() && schema[0].alias_info()->isWrite();
  // _unsafe_view gives away its operand: no view for autograd, and free to move data.
  result.view = schema[0].alias_info() && !result.in_place && op != "aten::_unsafe_view";
  result.op = std::move(op);
  result.arguments = std::move(arguments);
  return result;
}

Sample program(std::string name, Tensors inputs, std::function<Tensors(const Tensors&)> run) {
  Sample result;
  result.op = std::move(name);
  for (auto& input : inputs) result.arguments.emplace_back(std::move(input));
  result.program = std::move(run);
  return result;
}

at::Tensor values(Numbers sizes, double low, double high, at::ScalarType dtype) {
  const auto count = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  std::uniform_real_distribution<double> uniform(low, high);
  auto result = at::empty({count}, at::kDouble);
  for (std::int64_t i = 0; i < count; ++i)
    result.data_ptr<double>()[i] = std::floor(uniform(generator()) * 1024 + 1) / 1024;
  return result.to(dtype).view(sizes);
}

at::Tensor integers(Numbers sizes, std::int64_t low, std::int64_t high, at::ScalarType dtype) {
  const auto count = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  std::uniform_int_distribution<std::int64_t> uniform(low, high - 1);
  auto result = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) result.data_ptr<std::int64_t>()[i] = uniform(generator());
  return result.to(dtype).view(sizes);
}

at::Tensor booleans(Numbers sizes) { return integers(std::move(sizes), 0, 2, at::kBool); }

namespace {
std::vector<const SampleFile*>& files() {
  static std::vector<const SampleFile*> all;
  return all;
}
}  // namespace

SampleFile::SampleFile(const char* name, std::vector<Sample> (*make)()) : name_(name), make_(make) {
  files().push_back(this);
}
const std::vector<const SampleFile*>& SampleFile::all() { return files(); }
const std::vector<Sample>& SampleFile::samples() const {
  if (samples_.empty()) samples_ = make_();
  return samples_;
}

}  // namespace dtensor::brute
