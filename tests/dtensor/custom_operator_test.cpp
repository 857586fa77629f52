// Operators of other libraries, also those defined after this library has registered its kernels (DESIGN 4.2).
#include <dtensor/fallback.h>
#include <support/check.h>
#include <torch/library.h>
#include <torch/csrc/autograd/custom_function.h>
#include <catch2/catch_test_macros.hpp>

#include <mutex>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

at::Tensor doubled(const at::Tensor& a) { return a.clone().mul_(2); }
// Reads memory: only ever right on a plain tensor.
at::Tensor tripled(const at::Tensor& a) {
  const auto source = a.contiguous();
  auto result = at::empty_like(source);
  for (std::int64_t i = 0; i < source.numel(); ++i)
    result.mutable_data_ptr<double>()[i] = source.const_data_ptr<double>()[i] * 3;
  return result;
}
at::Tensor call(const char* name, const at::Tensor& a) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(const at::Tensor&)>().call(
      a);
}
struct Tripled : torch::autograd::Function<Tripled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& a) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call("late::with_autograd", a);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list g) {
    return {g[0] * 3};
  }
};
at::Tensor tripled_autograd(const at::Tensor& a) { return Tripled::apply(a); }

// Defined once, after the first DTensor was made.
void define_late_operators() {
  run_ranks(1, [](int) { place(values({2}), line(1), {Shard(0)}); });
  static std::once_flag once;
  std::call_once(once, [] {
    static torch::Library library(torch::Library::DEF, "late", std::nullopt, __FILE__, __LINE__);
    for (const char* name : {"explicit", "cpu", "with_autograd", "implicit", "explicit_reading"})
      library.def((std::string(name) + "(Tensor a) -> Tensor").c_str());
    library.impl("explicit", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(doubled)));
    library.impl("explicit_reading",
                 torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(tripled)));
    library.impl("cpu", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(tripled)));
    library.impl("with_autograd", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(tripled)));
    library.impl("with_autograd", torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(tripled_autograd)));
    library.impl("implicit", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                             [](const at::Tensor& a) { return a * 5; }));
  });
}

const Policy quiet = {Fallback::allow, ImplicitMoves::allow, PlainTensors::error};

}  // namespace

TEST_CASE("an operator defined late runs on replicated inputs, with every kind of kernel") {
  define_late_operators();
  run_ranks(2, [](int) {
    const PolicyGuard guard(quiet);
    const auto full = values({5});
    for (const auto& placement : {Shard(0), Replicate(), Partial()}) {
      const auto x = place(full, line(2), {placement});
      for (bool inference : {false, true}) {
        const c10::InferenceMode mode(inference);
        check_close(call("late::explicit", x), full * 2, "CompositeExplicitAutograd");
        check_close(call("late::explicit_reading", x), full * 3,
                    "CompositeExplicitAutograd that reads memory");
        check_close(call("late::cpu", x), full * 3, "CPU");
        check_close(call("late::with_autograd", x), full * 3, "CPU with autograd");
        check_close(call("late::implicit", x), full * 5, "CompositeImplicitAutograd");
      }
    }
    const auto counts = dtensor::detail::fallback_counts(World::current());
    const auto counted = [&](const std::string& name) {
      return std::any_of(counts.begin(), counts.end(),
                         [&](const auto& entry) { return entry.first == name; });
    };
    check(counted("late::explicit") && counted("late::cpu"), "counted as run for want of a rule");
  });
}

TEST_CASE("an operator defined late has the gradient that its library gives it") {
  define_late_operators();
  run_ranks(2, [](int) {
    const PolicyGuard guard(quiet);
    for (const auto& placement : {Shard(0), Replicate()}) {
      auto x = leaf(values({6}), line(2), {placement});
      call("late::with_autograd", x).sum().backward();
      check_close(x.grad(), at::full({6}, 3, at::kDouble), "autograd kernel");
      x.mutable_grad() = at::Tensor();
      call("late::implicit", x).sum().backward();
      check_close(x.grad(), at::full({6}, 5, at::kDouble), "composite");
      check_placed(x.grad(), {placement}, "composite");
    }
  });
}

TEST_CASE("an operator defined late obeys the fallback policy") {
  define_late_operators();
  run_ranks(2, [](int) {
    const PolicyGuard guard({Fallback::error, ImplicitMoves::allow, PlainTensors::error});
    const auto x = place(values({6}), line(2), {Shard(0)});
    check_contains(refusal_of<UnsupportedError>([&] { call("late::cpu", x); }, "cpu"), "late::cpu");
    check_contains(refusal_of<UnsupportedError>([&] { call("late::explicit", x); }, "explicit"),
                   "late::explicit");
    check_close(call("late::implicit", x), values({6}) * 5, "a composite needs no rule");
  });
}
