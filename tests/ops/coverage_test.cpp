// Every rule has a sample: a new rule cannot come untested.
#include "brute_force.h"

#include "ops/rule.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <catch2/catch_test_macros.hpp>

#include <map>

namespace dtensor::brute {
namespace {

// Rules that no sample here reaches, and why.
const std::map<std::string, std::string> exceptions = {
    {"aten::detach_", "runs as detach; copy_test has a sample"},
    {"aten::_fused_rms_norm",
     "has no kernel for the CPU and decomposes; normalization_test has samples of rms_norm"},
    {"aten::_fused_rms_norm_backward", "as _fused_rms_norm"},
    {"dtensor::linear_cross_entropy_rows",
     "no operator of LibTorch means it; parallelize/linear_cross_entropy_test compares it with two that do"},
    {"dtensor::linear_cross_entropy_gradient", "as linear_cross_entropy_rows"},
};

TEST_CASE("every rule has a sample") {
  std::set<std::string> sampled;
  for (const auto* file : SampleFile::all())
    for (const auto& sample : file->samples()) {
      if (!sample.program && !sample.fallback) sampled.insert(sample.op);
      sampled.insert(sample.reached.begin(), sample.reached.end());
    }
  std::string missing;
  for (const auto& name : rule_names())
    if (!sampled.count(name) && !exceptions.count(name)) missing += name + " ";
  CHECK(missing == "");
}

TEST_CASE("every rule is of an operator that exists and reaches the dispatch") {
  // A composite operator decomposes before this library sees it, unless it is overridden or has a kernel of its own too.
  const std::set<std::string> overridden = {"aten::matmul", "aten::_fused_rms_norm"};
  std::string unknown, composite;
  for (const auto& name : rule_names()) {
    if (name.rfind("dtensor::", 0) == 0) continue;
    const auto dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (!op)
      unknown += name + " ";
    else if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
             !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !overridden.count(name))
      composite += name + " ";
  }
  CHECK(unknown == "");
  CHECK(composite == "");
}

}  // namespace
}  // namespace dtensor::brute
