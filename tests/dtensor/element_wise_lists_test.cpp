// _foreach_ operators and fused optimizer steps: lists of tensors of all placements, in one call where they lie alike.
#include <support/check.h>
#include <ATen/Functions.h>
#include <catch2/catch_test_macros.hpp>

using namespace dtensor;
using namespace dtensor::testing;

namespace {

// Even, uneven, empty on some rank, and a number.
const std::vector<std::vector<std::int64_t>> shapes = {{6, 3}, {4, 5}, {1, 2}};

std::vector<at::Tensor> plain_list(int seed) {
  std::vector<at::Tensor> list;
  for (const auto& shape : shapes) list.push_back(values(shape, seed++).abs().add(0.1));
  return list;
}

std::vector<at::Tensor> placed(const std::vector<at::Tensor>& list, const DeviceMesh& mesh, const Placement& placement) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : list) result.push_back(place(tensor, mesh, {placement}));
  return result;
}

void check_lists(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, const std::string& text) {
  check(actual.size() == expected.size(), text + ": as many tensors");
  for (std::size_t i = 0; i < actual.size(); ++i) check_close(actual[i], expected[i], text + " " + std::to_string(i));
}

using Lists = std::vector<std::vector<at::Tensor>>;

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : list) result.push_back(tensor.clone());
  return result;
}

}  // namespace

TEST_CASE("_foreach_ on lists that lie alike, or apart") {
  const std::vector<std::pair<const char*, std::function<std::vector<at::Tensor>(std::vector<at::Tensor>, std::vector<at::Tensor>)>>>
      makes = {{"add.List", [](auto a, auto b) { return at::_foreach_add(a, b, 0.5); }},
               {"mul.Scalar", [](auto a, auto) { return at::_foreach_mul(a, 3); }},
               {"div.ScalarList", [](auto a, auto) { return at::_foreach_div(a, std::vector<at::Scalar>{1, 2.5, 4}); }},
               {"mul.Tensor", [](auto a, auto) { return at::_foreach_mul(a, at::ones({}, at::kDouble) * 2); }},
               {"sqrt", [](auto a, auto) { return at::_foreach_sqrt(a); }},
               {"addcmul", [](auto a, auto b) { return at::_foreach_addcmul(a, b, a, 0.25); }},
               {"lerp", [](auto a, auto b) { return at::_foreach_lerp(a, b, 0.25); }},
               {"maximum", [](auto a, auto b) { return at::_foreach_maximum(a, b); }},
               {"pow of a number", [](auto a, auto) { return at::_foreach_pow(2.0, a); }},
               {"norm", [](auto a, auto) { return at::_foreach_norm(a); }}};
  const std::vector<std::pair<const char*, std::function<void(std::vector<at::Tensor>, std::vector<at::Tensor>)>>> writes = {
      {"add_", [](auto a, auto b) { at::_foreach_add_(a, b); }},
      {"mul_", [](auto a, auto) { at::_foreach_mul_(a, 0.5); }},
      {"addcdiv_", [](auto a, auto b) { at::_foreach_addcdiv_(a, b, b, 2.0); }},
      {"copy_", [](auto a, auto b) { at::_foreach_copy_(a, b); }},
      {"zero_", [](auto a, auto) { at::_foreach_zero_(a); }}};
  run_ranks(4, [&](int) {
    const auto mesh = line(4);
    const auto a = plain_list(1), b = plain_list(5);
    for (const auto& first : {Replicate(), Shard(0), Shard(1), Partial()})
      for (const auto& second : {Replicate(), Shard(0), Shard(1), Partial()}) {
        const auto da = placed(a, mesh, first), db = placed(b, mesh, second);
        const auto where = first.to_string() + ", " + second.to_string() + ": ";
        for (const auto& [name, make] : makes) {
          const CollectiveCounter counter;
          const auto made = make(da, db);
          if (first == second && !first.is_partial() && std::string(name) != "norm")
            check(counter.total() == 0, where + name + " communicates");
          check_lists(made, make(a, b), where + name);
        }
        if (first.is_partial()) continue;  // in place on pending values: in_place_test.cpp
        for (const auto& [name, write] : writes) {
          auto here = copies(da), expected = copies(a);
          write(here, db);
          write(expected, b);
          check_lists(here, expected, where + name);
          for (const auto& tensor : here) check_placed(tensor, {first}, where + name);
        }
      }
  });
}

TEST_CASE("_foreach_ on lists of DTensors and plain tensors, and of transposed ones") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = plain_list(1), b = plain_list(5);
    auto mixed = placed(a, mesh, Shard(0)), other = placed(b, mesh, Shard(0));
    mixed[1] = a[1].clone();
    other[1] = b[1];
    const auto sums = at::_foreach_add(mixed, other);
    check_lists(sums, at::_foreach_add(a, b), "mixed");
    check(!is_dtensor(sums[1]) && is_dtensor(sums[0]), "plain ones stay plain");
    at::_foreach_mul_(mixed, other);
    check_lists(mixed, at::_foreach_mul(a, b), "mixed, in place");
    const std::vector<at::Tensor> turned = {place(a[0], mesh, {Shard(0)}).t()};
    const auto roots = at::_foreach_sqrt(turned);
    check_close(roots[0], a[0].t().sqrt(), "transposed");
    check(roots[0].strides() == at::_foreach_sqrt(std::vector<at::Tensor>{a[0].t()})[0].strides(), "strides as plain ones have");
  });
}

TEST_CASE("_foreach_ has gradients, and writes count as changes") {
  run_ranks(2, [](int) {
    const auto mesh = line(2);
    const auto a = plain_list(1);
    std::vector<at::Tensor> leaves, expected;
    for (const auto& tensor : a) {
      leaves.push_back(leaf(tensor, mesh, {Shard(0)}));
      expected.push_back(tensor.clone().requires_grad_());
    }
    for (auto* list : {&leaves, &expected}) {
      at::Tensor sum;
      for (const auto& one : at::_foreach_exp(*list)) sum = sum.defined() ? sum + one.sum() : one.sum();
      sum.backward();
    }
    for (std::size_t i = 0; i < a.size(); ++i) check_close(leaves[i].grad(), expected[i].grad(), "gradient");
    auto list = placed(a, mesh, Shard(0));
    const auto before = list[0]._version();
    at::_foreach_add_(list, 1);
    check(list[0]._version() == before + 1, "the version is counted");
  });
}

TEST_CASE("fused optimizer steps: parameters, states and gradients of all placements") {
  struct Step {
    const char* name;
    int states;
    std::function<void(Lists&, const std::vector<at::Tensor>&)> run;  // parameters, gradients, states; steps
  };
  const std::vector<Step> all = {
      {"adamw", 2,
       [](Lists& lists, const std::vector<at::Tensor>& steps) {
         at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
       }},
      {"adam, amsgrad, rate in a tensor", 3,
       [](Lists& lists, const std::vector<at::Tensor>& steps) {
         at::_fused_adam_(lists[0], lists[1], lists[2], lists[3], lists[4], steps, at::full({}, 0.1, at::kDouble), 0.9, 0.99,
                          0.01, 1e-8, true, true);
       }},
      {"adamw, scaled gradients", 2,
       [](Lists& lists, const std::vector<at::Tensor>& steps) {
         at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false,
                           at::full({}, 4, at::kFloat), at::zeros({}, at::kFloat));
       }},
      {"sgd with momentum", 1,
       [](Lists& lists, const std::vector<at::Tensor>&) {
         at::_fused_sgd_(lists[0], lists[1], lists[2], 0.01, 0.9, 0.1, 0, true, false, false);
       }},
      {"adagrad", 1, [](Lists& lists, const std::vector<at::Tensor>& steps) {
         at::_fused_adagrad_(lists[0], lists[1], lists[2], steps, 0.1, 0.01, 0.02, 1e-8, false);
       }}};
  run_ranks(4, [&](int) {
    const auto mesh = line(4);
    for (const auto& step : all)
      for (const auto& own : {Replicate(), Shard(0), Shard(1)})
        for (const auto& of_gradient : {Replicate(), Shard(0), Shard(1), Partial()})
          for (const bool placed_steps : {false, true}) {
            const auto text = fmt::format("{}, {}, gradients {}", step.name, own.to_string(), of_gradient.to_string());
            const bool writes_gradients = std::string(step.name).find("scaled") != std::string::npos;
            Lists plain, here;
            for (int list = 0; list < 2 + step.states; ++list) {
              plain.push_back(plain_list(3 * list));
              here.push_back(placed(plain.back(), mesh, list == 1 ? of_gradient : own));
            }
            std::vector<at::Tensor> steps(shapes.size(), at::full({}, 2, at::kFloat)), steps_here = steps;
            if (placed_steps)
              for (auto& one : steps_here) one = place(one, mesh, {Replicate()});
            step.run(plain, steps);
            const CollectiveCounter counter;
            if (writes_gradients && of_gradient.is_partial()) {
              refusal_of<UnsupportedError>([&] { step.run(here, steps_here); }, text);
              continue;
            }
            step.run(here, steps_here);
            check(here[0][0]._version() > 0, text + ": the write is counted");
            if (own == of_gradient) check(counter.total() == 0, text + " communicates");
            for (std::size_t list = 0; list < plain.size(); ++list) {
              check_lists(here[list], plain[list], text + " list " + std::to_string(list));
              for (const auto& tensor : here[list]) check_placed(tensor, {list == 1 ? of_gradient : own}, text);
            }
          }
  });
}
