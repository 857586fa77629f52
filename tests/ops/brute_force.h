// Rules against brute force: a sample call runs on plain tensors, then with every combination of placements of its
// tensors, and must mean the same on every rank: values, gradients, sizes, strides, dtype, memory shared with inputs.
#pragma once

#include "placements/placement.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dtensor::brute {

using Tensors = std::vector<at::Tensor>;
using Numbers = std::vector<std::int64_t>;
// Placements of each input; nothing for one that stays a plain tensor.
using Combination = std::vector<std::optional<Placements>>;

struct Sample {
  std::string op;  // "aten::add.Tensor"
  std::vector<c10::IValue>
      arguments;  // as in the schema, the rest defaults; tensors among them are the inputs
  std::function<Tensors(const Tensors&)> program;  // in place of the operator; `arguments` are its inputs
  std::vector<std::string> reached;  // other rules it must reach, such as the operator's backward
  std::function<bool(const Combination&)> may_refuse = [](const Combination&) { return false; };
  bool gradient = true;        // where the plain operator has one
  bool in_place = false;       // writes input 0 (set by `sample` from the schema)
  bool view = false;           // a view of input 0 by its schema: shares memory where nothing had to move
  bool mesh_of_one = false;    // the reference is a DTensor on a mesh of one: random numbers
  bool fallback = false;       // the rule does not serve this form of the call
  bool other_pending = false;  // also Partial(max) and Partial(avg)
  bool plain_inputs = true;    // some inputs also as plain tensors
  bool free_strides = false;   // LibTorch's meta kernel tells of other strides than the operator gives
  std::size_t limit = 48;      // combinations on a mesh

  Sample& reaches(std::vector<std::string> names) { return reached = std::move(names), *this; }
  Sample& without_gradient() { return gradient = false, *this; }
  Sample& as_on_one_rank() { return mesh_of_one = true, *this; }
  Sample& falls_back() { return fallback = true, *this; }
  Sample& any_pending() { return other_pending = true, *this; }
  Sample& only_dtensors() { return plain_inputs = false, *this; }
  Sample& any_strides() { return free_strides = true, *this; }
  Sample& writes() { return in_place = true, *this; }
  Sample& at_most(std::size_t count) { return limit = count, *this; }
  Sample& refuses(std::function<bool(const Combination&)> when) {
    return may_refuse = std::move(when), *this;
  }
  // In place with an operator that is not linear in what it writes.
  Sample& refuses_pending_self();

  Tensors inputs() const;
  std::string label() const;
};

Sample sample(std::string op, std::vector<c10::IValue> arguments, const std::vector<c10::IValue>& rest = {});
// `name` is for texts; what it must reach is told by reaches().
Sample program(std::string name, Tensors inputs, std::function<Tensors(const Tensors&)> run);

// Runs an operator by name through the dispatcher, as at:: functions do.
Tensors call_operator(const std::string& op, std::vector<c10::IValue> arguments);

// Values in [low, high), multiples of 1/1024; each call draws anew.
at::Tensor values(Numbers sizes, double low = -2, double high = 2, at::ScalarType dtype = at::kDouble);
at::Tensor integers(Numbers sizes, std::int64_t low, std::int64_t high, at::ScalarType dtype = at::kLong);
at::Tensor booleans(Numbers sizes);

// The samples of one test file. All files are linked into one program, so the test of coverage sees all.
class SampleFile {
 public:
  SampleFile(const char* name, std::vector<Sample> (*make)());
  static const std::vector<const SampleFile*>& all();

  const char* name() const { return name_; }
  const std::vector<Sample>& samples() const;
  // All samples on a mesh of this shape: what is wrong, empty when nothing is. With DTENSOR_BRUTE_FORCE=verbose in the
  // environment prints counts, and which operators ran without a rule.
  std::string failures(const Numbers& mesh_shape) const;

 private:
  const char* name_;
  std::vector<Sample> (*make_)();
  mutable std::vector<Sample> samples_;
};

}  // namespace dtensor::brute
