#include "dtensor/operator_info.h"

#include "dtensor/element_wise_lists.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
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
                                              "aten::miopen_batch_norm", "aten::_native_batch_norm_legit",
                                              "aten::_batch_norm_with_update"};
  return names.count(name) > 0;
}

// Whether `form` takes the arguments of `schema` less the written ones; it may add others that have defaults.
bool same_arguments(const OperatorInfo& info, const c10::FunctionSchema& form) {
  const auto& schema = info.handle.schema();
  const auto& arguments = form.arguments();
  std::size_t j = 0;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (info.written[i] && info.has_out) continue;
    if (j == arguments.size() || arguments[j].name() != schema.arguments()[i].name() ||
        arguments[j].type()->str() != schema.arguments()[i].type()->str())
      return false;
    if (arguments[j].alias_info() && arguments[j].alias_info()->isWrite()) return false;
    ++j;
  }
  for (; j < arguments.size(); ++j)
    if (!arguments[j].default_value()) return false;
  return true;
}

std::optional<c10::OperatorHandle> find_functional_form(const OperatorInfo& info) {
  const auto& schema = info.handle.schema();
  auto name = schema.name();
  auto& dispatcher = c10::Dispatcher::singleton();
  if (info.in_place) {
    if (name.back() != '_') return std::nullopt;
    name.pop_back();
    if (auto same_overload = dispatcher.findSchema({name, schema.overload_name()})) return same_overload;
  }
  for (const auto& candidate : dispatcher.getAllOpNames()) {
    if (candidate.name != name) continue;
    auto handle = dispatcher.findSchema(candidate);
    if (handle && same_arguments(info, handle->schema())) return handle;
  }
  return std::nullopt;
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
  if (name == "aten::slice.Tensor") arguments[2] = arguments[3] = Argument::bound;
  if (name == "aten::select.int") arguments[2] = Argument::bound;
  in_place = !written.empty() && written[0] && !has_out;
  for (const auto& result : schema.returns()) {
    int alias = -1;
    if (result.alias_info() && result.alias_info()->isWrite())
      for (std::size_t i = 0; i < written.size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (written[i] && info && info->beforeSets() == result.alias_info()->beforeSets())
          alias = static_cast<int>(i);
      }
    return_alias.push_back(alias);
    returns_tensor = returns_tensor || result.type()->str().find("Tensor") != std::string::npos;
  }
  whole_values = !returns_tensor && !writes;
  writes_uncounted = writes && !has_out && !handle.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
  view = !written.empty() && !written[0] && schema.arguments()[0].alias_info() != nullptr;
  random = handle.hasTag(at::Tag::nondeterministic_seeded);
  rule = find_rule(name);
  const bool lists = std::find(arguments.begin(), arguments.end(), Argument::tensor_list) != arguments.end();
  if (!rule && handle.hasTag(at::Tag::pointwise) && !has_out && !random && !lists && return_alias.size() == 1)
    rule = &pointwise_rule();
  mutates_unmarked = writes_running_statistics(name);
  writes_others = mutates_unmarked;
  for (std::size_t i = 1; i < written.size(); ++i) writes_others = writes_others || (written[i] && !has_out);
  static const std::set<std::string> carrying = {
      "aten::t",      "aten::transpose.int", "aten::permute", "aten::_to_copy", "aten::clone",
      "aten::detach", "aten::alias",         "aten::view",    "aten::expand",   "aten::lift_fresh"};
  carries_wishes = carrying.count(name) > 0;
  casts = name == "aten::_to_copy";
  sets_values = name == "aten::set_.source_Tensor";
  changes_geometry = in_place && handle.hasTag(at::Tag::inplace_view);
  loops_over_lists = name.rfind("aten::_foreach_", 0) == 0 &&
                      handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  element_wise_on_lists = is_element_wise_on_lists(name);
  if (!handle.hasKernelForDispatchKey(composite_key))
    composite_key = c10::DispatchKey::CompositeExplicitAutogradNonFunctional;
  static const std::set<std::string> striding = {"aten::as_strided", "aten::as_strided_",
                                                 "aten::as_strided_copy", "aten::as_strided_scatter"};
  reads_strides = striding.count(name) > 0;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (schema.arguments()[i].name() == "device") device_argument = static_cast<int>(i);
}

std::optional<c10::OperatorHandle> functional_form(const OperatorInfo& info) {
  static std::mutex mutex;
  static std::unordered_map<const OperatorInfo*, std::optional<c10::OperatorHandle>> forms;
  const std::lock_guard lock(mutex);
  const auto found = forms.find(&info);
  return found != forms.end() ? found->second
                              : forms.emplace(&info, find_functional_form(info)).first->second;
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
