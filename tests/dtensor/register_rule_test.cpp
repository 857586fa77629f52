// An operator of a program's own, with a rule of its own.
#include <ops/rule_builder.h>
#include <support/check.h>
#include <torch/library.h>
#include <torch/types.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

at::Tensor twice_plus(const at::Tensor& x, const at::Tensor& y) { return x * 2 + y; }
at::Tensor row_sums(const at::Tensor& x) { return x.sum(-1); }

TORCH_LIBRARY(dtensor_register_rule_test, library) {
  library.def("twice_plus(Tensor x, Tensor y) -> Tensor");
  library.def("row_sums(Tensor x) -> Tensor");
  library.impl("twice_plus", c10::DispatchKey::CPU, TORCH_FN(twice_plus));
  library.impl("row_sums", c10::DispatchKey::CPU, TORCH_FN(row_sums));
}

std::optional<Rule> twice_plus_rule(const OperatorCall& call) {
  return RuleBuilder(call).pointwise(2).linear({0, 1}).build();
}

const bool registered = [] {
  register_rule("dtensor_register_rule_test::twice_plus", twice_plus_rule);
  register_rule("dtensor_register_rule_test::row_sums", by_text<"*...n->...">);
  return true;
}();

at::Tensor call(const char* name, std::vector<c10::IValue> arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(arguments);
  return arguments[0].toTensor();
}

TEST_CASE("an operator with a registered rule runs on shards") {
  const auto x = at::arange(15, at::kDouble).view({5, 3}), y = at::ones({3}, at::kDouble);
  run_ranks(3, [&](int) {
    const PolicyGuard strict(Policy::strict());
    const torch::NoGradGuard no_grad;
    const auto rows = place(x, line(3), {Shard(0)}), columns = place(x, line(3), {Shard(1)}),
               whole = place(y, line(3), {Replicate()});
    const DTensor sum(call("dtensor_register_rule_test::twice_plus", {rows, whole}));
    check(sum.placements() == Placements{Shard(0)}, "twice_plus keeps its rows");
    check_close(sum, x * 2 + y, "twice_plus");
    const DTensor pending(call("dtensor_register_rule_test::row_sums", {columns}));
    check(pending.placements() == Placements{Partial()}, "sums over a cut dimension are pending");
    check_close(pending, x.sum(-1), "row_sums");
  });
}

TEST_CASE("a rule cannot come late") {
  run_ranks(1, [](int) { line(1); });
  CHECK_THROWS_AS(register_rule("dtensor_register_rule_test::twice_plus", twice_plus_rule), UnsupportedError);
}

}  // namespace
