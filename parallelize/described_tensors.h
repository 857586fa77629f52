// Gathers the tensors of a module, tied ones once, while a description is made. Private to this library.
#pragma once

#include "dtensor/dtensor.h"
#include "parallelize/module_description.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace dtensor::detail {

class DescribedTensors {
 public:
  // Into `description.tensors`; notes go there too.
  explicit DescribedTensors(ModuleDescription& description) : result_(description) {}

  void add(const std::string& name, const at::Tensor& tensor, bool buffer) {
    if (!tensor.defined()) return;
    if (const auto same = find(tensor)) {
      auto& entry = result_.tensors[*same];
      entry.aliases.push_back(name);
      if (!entry.tensor.is_same(tensor)) entry.members.push_back(tensor);
      return;
    }
    DescribedTensor entry;
    entry.name = name;
    entry.sizes = tensor.sizes().vec();
    entry.dtype = c10::toString(tensor.scalar_type());
    entry.element_size = static_cast<std::int64_t>(tensor.element_size());
    entry.buffer = buffer;
    entry.is_dtensor = is_dtensor(tensor);
    entry.tensor = tensor;
    const auto index = result_.tensors.size();
    by_handle_.emplace(tensor.unsafeGetTensorImpl(), index);
    if (const auto* memory = memory_of(tensor)) by_memory_.emplace(memory, index);
    result_.tensors.push_back(std::move(entry));
  }

  // The tensor that a typed member holds. A member rebound by assignment (b->weight = a->weight) is found by its
  // memory; the registered slot that nobody reads then stays as it is and is reported.
  std::optional<std::size_t> member(const at::Tensor& tensor, const DescribedModule& owner) {
    if (!tensor.defined()) return std::nullopt;
    const auto index = find(tensor);
    if (!index) return std::nullopt;
    auto& entry = result_.tensors[*index];
    const auto owned = [&](const std::string& name) { return name.starts_with(owner.path + "."); };
    if (!owned(entry.name) && std::none_of(entry.aliases.begin(), entry.aliases.end(), owned)) {
      entry.aliases.push_back(owner.path);
      result_.notes.push_back(fmt::format(
          "module \"{}\" reads \"{}\" (tied by assignment); its own registered parameter is read by nobody",
          owner.path, entry.name));
    }
    const auto same = [&](const at::Tensor& known) { return known.is_same(tensor); };
    if (!same(entry.tensor) && std::none_of(entry.members.begin(), entry.members.end(), same))
      entry.members.push_back(tensor);
    return index;
  }

 private:
  // What tells the memory of a tensor from others'; for one without any (device meta), its storage stands for it.
  static const void* memory_of(const at::Tensor& tensor) {
    if (dtensor::is_dtensor(tensor) || tensor.numel() == 0 || !tensor.has_storage()) return nullptr;
    return tensor.is_meta() ? tensor.storage().unsafeGetStorageImpl() : tensor.const_data_ptr();
  }

  // Tied: the same tensor, or another handle on the same memory.
  std::optional<std::size_t> find(const at::Tensor& tensor) const {
    if (const auto at = by_handle_.find(tensor.unsafeGetTensorImpl()); at != by_handle_.end())
      return at->second;
    const auto* memory = memory_of(tensor);
    if (!memory) return std::nullopt;
    const auto at = by_memory_.find(memory);
    if (at == by_memory_.end() || result_.tensors[at->second].tensor.sizes() != tensor.sizes())
      return std::nullopt;
    return at->second;
  }

  ModuleDescription& result_;
  std::unordered_map<const void*, std::size_t> by_handle_, by_memory_;
};

}  // namespace dtensor::detail
