#include "dtensor/call.h"

#include "placements/error.h"

#include <fmt/format.h>

namespace dtensor::detail {

Call::Call(const OperatorInfo& info_, torch::jit::Stack& stack_)
    : info(info_), stack(stack_), base(stack_.size() - info_.arguments.size()) {
  using Kind = OperatorInfo::Argument;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    switch (info.arguments[i]) {
      case Kind::tensor:
        add(value.isTensor() ? value.toTensor() : at::Tensor(), i, -1);
        break;
      case Kind::tensor_list:
        if (value.isTensorList()) {
          const auto list = value.toTensorList();
          operands.reserve(operands.size() + list.size());
          tensors.reserve(tensors.size() + list.size());
          for (std::size_t j = 0; j < list.size(); ++j) add(list[j], i, static_cast<std::int64_t>(j));
        }
        break;
      case Kind::optional_tensor_list:
        if (value.isOptionalTensorList()) {
          const auto list = value.toOptionalTensorList();
          for (std::size_t j = 0; j < list.size(); ++j) {
            const std::optional<at::Tensor> element = list[j];
            add(element.value_or(at::Tensor()), i, static_cast<std::int64_t>(j));
          }
        } else if (value.isTensorList()) {
          const auto list = value.toTensorList();
          for (std::size_t j = 0; j < list.size(); ++j) add(list[j], i, static_cast<std::int64_t>(j));
        }
        break;
      default: break;
    }
  }
}

void Call::add(const at::Tensor& tensor, std::size_t argument, std::int64_t element) {
  Operand operand;
  operand.argument = static_cast<std::int16_t>(argument);
  operand.element = static_cast<std::int16_t>(element);
  operand.written = info.written[argument];
  if (tensor.defined()) {
    operand.defined = true;
    operand.sizes = tensor.sizes();
    operand.strides = tensor.layout() == at::kStrided ? tensor.strides() : c10::IntArrayRef();
    operand.dtype = tensor.scalar_type();
    if (is_dtensor(tensor)) {
      Meta& data = meta(tensor);
      operand.layout = data.layout;
      if (!mesh) {
        mesh = data.mesh;
      } else if (mesh != data.mesh) {
        throw MeshError(fmt::format(
            "{}: argument {} lives on mesh {}, another on mesh {}. Operators do not move tensors between meshes: bring "
            "all of them to one mesh first (full_tensor(), then distribute_tensor on the other mesh).",
            info.name, info.handle.schema().arguments()[argument].name(), data.mesh->layout->to_string(),
            mesh->layout->to_string()));
      }
    }
  }
  operands.push_back(operand);
  tensors.push_back(tensor);
}

std::string Call::where() const { return fmt::format("{} (rank {})", to_string(), mesh->world->rank()); }

void Call::count_writes(int except) const {
  if (!info.writes_uncounted) return;
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (operands[i].written && operands[i].defined && operands[i].argument != except)
      tensors[i].unsafeGetTensorImpl()->bump_version();
}

void Call::set_tensors(c10::ArrayRef<at::Tensor> locals) {
  using Kind = OperatorInfo::Argument;
  std::size_t next = 0;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    c10::IValue& value = stack[base + i];
    switch (info.arguments[i]) {
      case Kind::tensor:
        if (locals[next].defined()) value = locals[next];
        ++next;
        break;
      case Kind::tensor_list:
        if (value.isTensorList()) {
          c10::List<at::Tensor> list;
          const auto count = value.toTensorList().size();
          list.reserve(count);
          for (std::size_t j = 0; j < count; ++j) list.push_back(locals[next++]);
          value = std::move(list);
        }
        break;
      case Kind::optional_tensor_list: {
        const bool optional = value.isOptionalTensorList();
        if (!optional && !value.isTensorList()) break;
        const auto count = optional ? value.toOptionalTensorList().size() : value.toTensorList().size();
        c10::List<std::optional<at::Tensor>> list;
        for (std::size_t j = 0; j < count; ++j, ++next)
          list.push_back(locals[next].defined() ? std::optional<at::Tensor>(locals[next]) : std::nullopt);
        value = std::move(list);
        break;
      }
      default: break;
    }
  }
}

}  // namespace dtensor::detail
