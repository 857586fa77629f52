#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <map>

namespace dtensor::brute {
namespace {

using Arguments = std::vector<c10::IValue>;

// One operand: even, uneven, empty shards, size-1 dimensions, 0-D, no elements; two shapes for each operator in turn.
const std::vector<Numbers> shapes = {{5, 3}, {4, 2}, {1, 4}, {2, 3}, {}, {0, 3}, {2, 1, 3}};

// Two operands that broadcast.
const std::vector<std::pair<Numbers, Numbers>> pairs = {{{5, 3}, {5, 3}}, {{4, 3}, {3}}, {{5, 1}, {1, 4}},
                                                        {{2, 3}, {}},     {{0, 3}, {3}}, {{3}, {2, 3}},
                                                        {{1, 4}, {1, 4}}, {{}, {4}}};

struct Unary {
  const char* names;  // separated by blanks
  double low, high;
  Arguments rest;
};

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> all = {""};
  for (char c : names)
    if (c == ' ')
      all.emplace_back();
    else
      all.back() += c;
  return all;
}

std::vector<Sample> unary() {
  const std::vector<Unary> table = {
      {"abs angle asinh atan ceil cos cosh erf erfc exp exp2 expm1 floor frac relu round sigmoid sign "
       "signbit sgn sin sinc "
       "sinh tanh trunc neg i0 special_i0e special_i1 special_i1e special_erfcx special_log_ndtr nan_to_num "
       "isnan isinf "
       "isposinf isneginf logical_not silu mish hardswish hardsigmoid log_sigmoid_forward gelu softplus elu "
       "celu "
       "leaky_relu hardtanh hardshrink softshrink",
       -2,
       2,
       {}},
      {"acos asin atanh erfinv tan", -0.9, 0.9, {}},
      {"logit special_ndtri", 0.1, 0.9, {}},
      {"digamma lgamma log log10 log1p log2 reciprocal rsqrt sqrt special_entr", 0.2, 3, {}},
      {"acosh", 1.1, 3, {}},
      {"round.decimals", -2, 2, {1}},
      {"threshold", -2, 2, {0.25, 3.0}},
      {"clamp", -2, 2, {-0.5, 0.75}},
      {"clamp_min", -2, 2, {-0.5}},
      {"clamp_max", -2, 2, {0.5}},
      {"pow.Tensor_Scalar", -2, 2, {3.0}},
      {"fmod.Scalar remainder.Scalar", -2, 2, {0.75}},
      {"eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", -2, 2, {0.5}},
      {"add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar", -2, 2, {1.75}},
      {"div.Scalar_mode", -2, 2, {0.75, "floor"}},
  };
  const std::map<std::string, std::vector<std::string>> backward = {
      {"silu", {"aten::silu_backward"}},
      {"mish", {"aten::mish_backward"}},
      {"gelu", {"aten::gelu_backward"}},
      {"elu", {"aten::elu_backward"}},
      {"sigmoid", {"aten::sigmoid_backward"}},
      {"tanh", {"aten::tanh_backward"}},
      {"relu", {"aten::threshold_backward"}},
      {"hardswish", {"aten::hardswish_backward"}},
      {"hardsigmoid", {"aten::hardsigmoid_backward"}},
      {"hardtanh", {"aten::hardtanh_backward"}},
      {"hardshrink", {"aten::hardshrink_backward"}},
      {"softshrink", {"aten::softshrink_backward"}},
      {"softplus", {"aten::softplus_backward"}},
      {"leaky_relu", {"aten::leaky_relu_backward"}},
      {"log_sigmoid_forward", {"aten::log_sigmoid_backward"}},
      {"logit", {"aten::logit_backward"}},
  };
  std::vector<Sample> all;
  std::size_t turn = 0;
  for (const auto& row : table)
    for (const auto& name : split(row.names))
      for (const auto& shape : {shapes[0], shapes[1 + turn++ % (shapes.size() - 1)]}) {
        all.push_back(sample("aten::" + name, {values(shape, row.low, row.high)}, row.rest));
        if (const auto found = backward.find(name); found != backward.end())
          all.back().reaches(found->second);
      }
  for (const auto& shape : shapes) {
    all.push_back(sample("aten::polygamma", {1, values(shape, 0.5, 3)}));
    all.push_back(sample("aten::pow.Scalar", {2.0, values(shape)}));
    all.push_back(sample("aten::bitwise_not", {integers(shape, -9, 9)}));
    all.push_back(sample("aten::logical_not", {booleans(shape)}));
  }
  for (const char* name : {"bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar"})
    all.push_back(sample(std::string("aten::") + name, {integers({5, 3}, 0, 16), 5}));
  return all;
}

std::vector<Sample> binary() {
  std::vector<Sample> all;
  std::size_t turn = 0;
  const auto add = [&](const std::string& names, auto make, const Arguments& rest) {
    for (const auto& name : split(names))
      for (const auto& pair : {pairs[0], pairs[1 + turn++ % (pairs.size() - 1)]}) {
        all.push_back(sample("aten::" + name, {make(pair.first), make(pair.second)}, rest));
      }
  };
  const auto any = [](Numbers sizes) { return values(std::move(sizes)); };
  const auto positive = [](Numbers sizes) { return values(std::move(sizes), 0.3, 3); };
  const auto whole = [](Numbers sizes) { return integers(std::move(sizes), 0, 5); };
  const auto counted = [](Numbers sizes) { return integers(std::move(sizes), 1, 40); };
  // Few different values, so that some are equal.
  const auto few = [](Numbers sizes) { return integers(std::move(sizes), 0, 3, at::kDouble); };
  const auto flags = [](Numbers sizes) { return booleans(std::move(sizes)); };
  add("maximum minimum fmax fmin atan2 hypot copysign.Tensor logaddexp logaddexp2 nextafter heaviside "
      "add.Tensor sub.Tensor "
      "mul.Tensor",
      any, {});
  add("fmod.Tensor remainder.Tensor pow.Tensor_Tensor xlogy.Tensor div.Tensor", positive, {});
  add("floor_divide", positive, {});
  add("div.Tensor_mode", positive, {"floor"});
  add("add.Tensor rsub.Tensor", any, {2.5});
  add("lerp.Scalar", any, {0.25});
  add("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", few, {});
  add("logical_and logical_or logical_xor", flags, {});
  add("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_left_shift.Tensor "
      "bitwise_right_shift.Tensor",
      whole, {});
  add("gcd lcm add.Tensor mul.Tensor maximum", counted, {});
  return all;
}

std::vector<Sample> several() {
  std::vector<Sample> all;
  const std::vector<std::vector<Numbers>> triples = {
      {{4, 3}, {4, 3}, {4, 3}}, {{5, 3}, {3}, {5, 1}}, {{2, 1}, {1, 4}, {}}};
  for (const auto& shape : triples) {
    const auto a = values(shape[0]), b = values(shape[1]), c = values(shape[2], 0.5, 2);
    all.push_back(sample("aten::addcmul", {a, b, c, 0.5}));
    all.push_back(sample("aten::addcdiv", {a, b, c, 0.5}));
    all.push_back(sample("aten::lerp.Tensor", {a, b, c}));
    all.push_back(sample("aten::where.self", {booleans(shape[0]), b, c}));
    all.push_back(sample("aten::clamp.Tensor", {a, b, b + c}));
    all.push_back(sample("aten::clamp.Tensor", {a, c10::IValue(), b}));
    all.push_back(sample("aten::clamp_min.Tensor", {a, b}));
    all.push_back(sample("aten::clamp_max.Tensor", {a, b}));
    all.push_back(sample("aten::masked_fill.Scalar", {a, booleans(shape[1]), 0.5}));
    all.push_back(sample("aten::masked_fill.Tensor", {a, booleans(shape[1]), values({})}));
  }
  all.push_back(program("prelu", {values({4, 3}), values({3}, 0.1, 1)}, [](const Tensors& x) {
                  return Tensors{at::prelu(x[0], x[1])};
                }).reaches({"aten::_prelu_kernel", "aten::_prelu_kernel_backward"}));
  all.push_back(program("one tensor twice", {values({5, 3})},
                        [](const Tensors& x) { return Tensors{x[0] * x[0] + x[0]}; }));
  all.push_back(program("transposed operands", {values({5, 3}), values({3, 5})}, [](const Tensors& x) {
    return Tensors{x[0].t() * x[1], at::exp(x[0].t()), x[0].t() + 1};
  }));
  return all;
}

std::vector<Sample> in_place() {
  std::vector<Sample> all;
  std::size_t turn = 0;
  // Linear in what they write: a pending self stays pending.
  for (const auto& shape : {pairs[0], pairs[1], pairs[3], pairs[4], pairs[6]}) {
    const auto a = values(shape.first), b = values(shape.second, 0.5, 2);
    all.push_back(sample("aten::add_.Tensor", {a, b, 2.0}));
    all.push_back(sample("aten::sub_.Tensor", {a, b}));
    all.push_back(sample("aten::mul_.Tensor", {a, b}));
    all.push_back(sample("aten::div_.Tensor", {a, b}));
    all.push_back(sample("aten::lerp_.Scalar", {a, b, 0.25}));
    all.push_back(sample("aten::addcmul_", {a, b, values(shape.second), 0.5}));
    all.push_back(sample("aten::addcdiv_", {a, b, b + 1, 0.5}));
    all.push_back(sample("aten::pow_.Tensor", {a, b}).refuses_pending_self().without_gradient());
    all.push_back(sample("aten::floor_divide_.Tensor", {a, b}).refuses_pending_self());
    all.push_back(
        sample("aten::masked_fill_.Scalar", {a, booleans(shape.second), 0.5}).refuses_pending_self());
  }
  for (const char* name :
       {"aten::add_.Scalar", "aten::sub_.Scalar", "aten::mul_.Scalar", "aten::div_.Scalar"})
    all.push_back(sample(name, {values(shapes[turn++ % shapes.size()]), 1.5}));
  all.push_back(sample("aten::div_.Scalar_mode", {values({5, 3}), 0.75, "trunc"}).refuses_pending_self());
  all.push_back(sample("aten::pow_.Scalar", {values({4, 3}), 2.0}).refuses_pending_self());
  all.push_back(sample("aten::neg_", {values({5, 3})}));
  for (const char* name :
       {"relu_", "exp_", "sigmoid_", "tanh_", "silu_", "abs_", "hardtanh_", "leaky_relu_", "round_"})
    for (const auto& shape : {shapes[0], shapes[turn++ % shapes.size()]})
      all.push_back(sample(std::string("aten::") + name, {values(shape)}).refuses_pending_self());
  all.push_back(sample("aten::clamp_", {values({4, 3}), -0.5, 0.5}).refuses_pending_self());
  all.push_back(sample("aten::bitwise_and_.Tensor", {integers({5, 3}, 0, 9), integers({3}, 0, 9)}));
  all.push_back(sample("aten::logical_or_", {booleans({5, 3}), booleans({3})}));
  for (const auto& shape : {Numbers{5, 3}, Numbers{}}) all.push_back(sample("aten::frexp.Tensor", {values(shape)}));
  for (const std::int64_t dim : {0, 1})
    all.push_back(sample("aten::glu", {values({6, 4, 3}), dim}).reaches({"aten::glu_backward"}));
  for (const char* op : {"aten::complex", "aten::polar"})
    all.push_back(sample(op, {values({5, 3}, 0.5, 2), values({5, 3})}));
  // Operators that have their rule by LibTorch's tag alone.
  for (const char* op : {"aten::special_bessel_j0", "aten::deg2rad", "aten::igamma", "aten::special_zeta"})
    for (const auto& shape : {Numbers{5, 3}, Numbers{}}) {
      std::vector<c10::IValue> arguments = {values(shape, 0.5, 2)};
      if (std::string(op) == "aten::igamma" || std::string(op) == "aten::special_zeta")
        arguments.push_back(values(shape, 1.5, 3));
      all.push_back(sample(op, arguments).without_gradient());
    }
  return all;
}

const SampleFile unary_file("pointwise, one operand", unary), binary_file("pointwise, two operands", binary),
    several_file("pointwise, several operands", several), in_place_file("pointwise, in place", in_place);

TEST_CASE("pointwise operators, one operand") {
  CHECK(unary_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}
TEST_CASE("pointwise operators, two operands") {
  CHECK(binary_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}
TEST_CASE("pointwise operators, several operands") {
  CHECK(several_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}
TEST_CASE("pointwise operators in place") {
  CHECK(in_place_file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == "");
}

}  // namespace
}  // namespace dtensor::brute
