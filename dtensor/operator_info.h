// What the dispatch needs to know of an operator, worked out once per operator.
#pragma once

#include "ops/rule.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

struct OperatorInfo {
  enum class Argument : std::uint8_t {
    tensor,                // Tensor or Tensor?
    tensor_list,           // Tensor[]
    optional_tensor_list,  // Tensor?[]
    keyed,                 // integers, booleans and their lists: may alter the sharding
    bound,                 // where a slice begins and ends: matters where its dimension is cut
    number,                // Scalar, float and their lists: enter the cache key only where the rule says so
    ignored,               // dtype, device, layout, generators
  };

  explicit OperatorInfo(c10::OperatorHandle handle);

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  std::vector<Argument> arguments;
  std::vector<bool> written;      // per argument
  std::vector<int> return_alias;  // per return: the written argument it is, or -1
  const RuleEntry* rule = nullptr;
  bool in_place = false;           // writes argument 0 and returns it
  bool has_out = false;            // writes keyword arguments (out=)
  bool random = false;             // draws random numbers
  bool carries_wishes = false;     // results keep the wishes of operand 0
  bool mutates_unmarked = false;   // writes to arguments without saying so in its schema
  bool writes_others = false;      // writes to arguments besides the first and out=, marked or not
  bool view = false;               // its schema says that results alias argument 0
  bool writes_uncounted = false;   // writes, and no kernel of LibTorch's raises the versions of what it writes to
  bool whole_values = false;       // returns no tensor: reads values
  bool changes_geometry = false;   // in place (transpose_, squeeze_, resize_)
  bool sets_values = false;        // set_(self, source)
  bool element_wise_on_lists = false;  // see element_wise_lists.h
  bool loops_over_lists = false;   // _foreach_: has LibTorch's own loop over the lists
  bool reads_strides = false;      // as_strided and its kin: arguments that refer to the operand's memory
  bool casts = false;              // _to_copy
  c10::DispatchKey composite_key = c10::DispatchKey::CompositeExplicitAutograd;  // of its decomposition, if any
  int device_argument = -1;        // where a device is asked for
};

// The form that writes nothing, of an in-place operator ("aten::add_" -> "aten::add") or an out= one ("aten::add.out" ->
// "aten::add.Tensor"), where there is one.
std::optional<c10::OperatorHandle> functional_form(const OperatorInfo& info);

// The info of an operator; made at first use, immortal.
const OperatorInfo& operator_info(const c10::OperatorHandle& handle);
const OperatorInfo& operator_info(const char* name, const char* overload);

}  // namespace dtensor::detail
