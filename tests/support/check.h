// Checks for code that runs on rank threads. Catch2's assertions are not made for several threads at once, so these throw:
// run_ranks rethrows the first failure, and the test case fails with its text.
#pragma once

#include <dtensor/all.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

namespace dtensor::testing {

using Location = std::source_location;

[[noreturn]] inline void fail(const std::string& text, const Location& where) {
  throw std::runtime_error(fmt::format("{}:{}: {}", where.file_name(), where.line(), text));
}
inline void check(bool holds, const std::string& text, Location where = Location::current()) {
  if (!holds) fail(text, where);
}

// The whole value, without graph; a plain tensor is its own.
inline at::Tensor whole(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? DTensor(tensor.detach()).full_tensor() : tensor.detach();
}
inline std::string describe(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? explain(tensor)
                            : fmt::format("plain [{}] {}", fmt::join(tensor.sizes(), ", "),
                                          c10::toString(tensor.scalar_type()));
}

// Same sizes, dtype and values (NaN equals NaN); the values are gathered, so all ranks must call this.
inline void check_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& text,
                        double tolerance = 1e-6, Location where = Location::current()) {
  if (!actual.defined() || !expected.defined()) fail(text + ": undefined", where);
  const auto value = whole(actual), reference = whole(expected);
  if (actual.sizes() != expected.sizes() || value.sizes() != reference.sizes() ||
      actual.scalar_type() != reference.scalar_type())
    fail(fmt::format("{}: {} instead of {}", text, describe(actual), describe(expected)), where);
  if (!at::allclose(value, reference, tolerance, tolerance, true)) {
    std::ostringstream values;
    values << value << "\ninstead of\n" << reference;
    fail(fmt::format("{}: {} holds\n{}", text, describe(actual), values.str()), where);
  }
}

// A DTensor placed so. One entry per mesh dimension.
inline void check_placed(const at::Tensor& tensor, const Placements& placements, const std::string& text,
                         Location where = Location::current()) {
  if (!is_dtensor(tensor)) fail(text + ": a plain tensor", where);
  if (DTensor(tensor).placements() != placements)
    fail(fmt::format("{}: {} instead of {}", text, describe(tensor), to_string(placements)), where);
}

// The text of the error that `function` must throw; of this type exactly or derived from it.
template <typename Error>
std::string error_of(const std::function<void()>& function, const std::string& text,
                     Location where = Location::current()) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    fail(fmt::format("{}: another error: {}", text, error.what()), where);
  }
  fail(text + ": no error", where);
}

// The same, and nothing was communicated before.
template <typename Error>
std::string refusal_of(const std::function<void()>& function, const std::string& text,
                       Location where = Location::current()) {
  const CollectiveCounter counter;
  auto message = error_of<Error>(function, text, where);
  if (counter.total() != 0)
    fail(fmt::format("{}: refused after communication: {}", text, counter.to_string()), where);
  return message;
}

inline void check_contains(const std::string& text, const std::string& part,
                           Location where = Location::current()) {
  if (text.find(part) == std::string::npos)
    fail(fmt::format("\"{}\" does not contain \"{}\"", text, part), where);
}

inline DeviceMesh line(int ranks, const std::string& name = "tp") {
  return init_device_mesh(at::kCPU, {ranks}, {name});
}
inline DeviceMesh grid(int rows, int columns) {
  return init_device_mesh(at::kCPU, {rows, columns}, {"dp", "tp"});
}

// Values that look random and are the same on every rank, without LibTorch's generator (one for the whole process).
inline at::Tensor values(c10::IntArrayRef sizes, int seed = 0, at::ScalarType dtype = at::kDouble) {
  const auto count = c10::multiply_integers(sizes);
  return at::sin(at::arange(count, at::kDouble) * 1.7 + seed * 0.61 + 0.3).mul(1.5).view(sizes).to(dtype);
}
inline at::Tensor counting(c10::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
  return at::arange(c10::multiply_integers(sizes), dtype).view(sizes);
}

// Distributes without sending: every rank's values are the same.
inline DTensor place(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  return distribute_tensor(full, mesh, placements, {std::nullopt});
}
inline DTensor leaf(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  auto tensor = place(full, mesh, placements);
  tensor.set_requires_grad(true);
  return tensor;
}

}  // namespace dtensor::testing
