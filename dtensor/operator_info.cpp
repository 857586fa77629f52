#include "dtensor/operator_info.h"

#include <ATen/core/enum_tag.h>

#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

namespace dtensor::detail {
namespace {

OperatorInfo::Argument kind_of(const c10::Argument& argument) {
  using Kind = OperatorInfo::Argument;
  const auto type = argument.real_type()->str();
  const bool list = type.find("[]") != std::string::npos;
  if (type.find("Tensor?[]") != std::string::npos || type.find("Optional[Tensor][]") != std::string::npos)
    return Kind::optional_tensor_list;
  if (type.find("Tensor") != std::string::npos) return list ? Kind::tensor_list : Kind::tensor;
  if (argument.name() == "dtype") return Kind::keyed;
  if (type.find("Device") != std::string::npos || type.find("Layout") != std::string::npos ||
      type.find("Generator") != std::string::npos || type.find("Stream") != std::string::npos)
    return Kind::ignored;
  if (type.find("float") != std::string::npos || type.find("Scalar") != std::string::npos ||
      type.find("number") != std::string::npos)
    return Kind::number;
  return Kind::keyed;
}

// LibTorch operators that write running statistics without a mark in their schema.
bool writes_running_statistics(const std::string& name) {
  static const std::set<std::string> names = {"aten::native_batch_norm", "aten::cudnn_batch_norm",
                                              "aten::miopen_batch_norm", "aten::_native_batch_norm_legit"};
  return names.count(name) > 0;
}

}  // namespace

OperatorInfo::OperatorInfo(c10::OperatorHandle handle_) : handle(handle_) {
  const auto& schema = handle.schema();
  name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  bool writes = false, returns_tensor = false;
  for (const auto& argument : schema.arguments()) {
    arguments.push_back(kind_of(argument));
    const bool write = argument.alias_info() && argument.alias_info()->isWrite();
    written.push_back(write);
    writes = writes || write;
    if (write && argument.kwarg_only()) has_out = true;
  }
  in_place = !written.empty() && written[0] && !has_out;
  for (const auto& result : schema.returns()) {
    int alias = -1;
    if (result.alias_info() && result.alias_info()->isWrite())
      for (std::size_t i = 0; i < written.size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (written[i] && info && info->beforeSets() == result.alias_info()->beforeSets()) alias = static_cast<int>(i);
      }
    return_alias.push_back(alias);
    returns_tensor = returns_tensor || result.type()->str().find("Tensor") != std::string::npos;
  }
  whole_values = !returns_tensor && !writes;
  view = !written.empty() && !written[0] && schema.arguments()[0].alias_info() != nullptr;
  rule = find_rule(name);
  random = handle.hasTag(at::Tag::nondeterministic_seeded);
  mutates_unmarked = writes_running_statistics(name);
  static const std::set<std::string> carrying = {"aten::t",      "aten::transpose.int", "aten::permute", "aten::_to_copy",
                                                 "aten::clone",  "aten::detach",        "aten::alias",   "aten::view",
                                                 "aten::expand", "aten::lift_fresh"};
  carries_wishes = carrying.count(name) > 0;
}

const OperatorInfo& operator_info(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorHandle, std::unique_ptr<OperatorInfo>> infos;
  const std::lock_guard lock(mutex);
  auto& slot = infos[handle];
  if (!slot) slot = std::make_unique<OperatorInfo>(handle);
  return *slot;
}

const OperatorInfo& operator_info(const char* name, const char* overload) {
  return operator_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

}  // namespace dtensor::detail
