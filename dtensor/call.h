// Call: one operator call on the boxed stack, with its tensors spread out as operands.
#pragma once

#include "dtensor/meta.h"
#include "dtensor/operator_info.h"
#include "ops/decision.h"

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

namespace dtensor::detail {

class Call {
 public:
  // Reads the arguments off the top of the stack (and leaves them there).
  // Errors: MeshError for tensors of different meshes.
  Call(const OperatorInfo& info, torch::jit::Stack& stack);

  const OperatorInfo& info;
  torch::jit::Stack& stack;
  std::size_t base;                          // of the arguments on the stack
  c10::SmallVector<Operand, 8> operands;
  c10::SmallVector<at::Tensor, 8> tensors;   // the operand's tensor; undefined where there is none
  c10::intrusive_ptr<MeshState> mesh;        // nullptr: no DTensor among the arguments

  std::span<const c10::IValue> arguments() const { return {stack.data() + base, info.arguments.size()}; }
  OperatorCall describe() const {
    return {info.name, {operands.data(), operands.size()}, arguments(), mesh->layout};
  }
  std::string to_string() const { return describe().to_string(); }
  // The error text's tail: where it happened.
  std::string where() const;

  // Replaces the arguments on the stack by the same ones with `locals` in place of the tensors.
  void set_tensors(c10::ArrayRef<at::Tensor> locals);
  // Raises the versions of the tensors written to where LibTorch does not, but for those of argument `except`: moves of them
  // that are remembered must not be taken for those of the new values.
  void count_writes(int except = -1) const;
  // Takes the arguments off the stack.
  void drop() { stack.resize(base); }

 private:
  void add(const at::Tensor& tensor, std::size_t argument, std::int64_t element);
};

}  // namespace dtensor::detail
