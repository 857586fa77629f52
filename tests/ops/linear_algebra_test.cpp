#include "brute_force.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace dtensor::brute {
namespace {

// Symmetric, with eigenvalues well apart and above zero.
at::Tensor definite(std::int64_t batch, std::int64_t n) {
  const auto a = values({batch, n, n}, -0.5, 0.5);
  return a.matmul(a.mT()) + at::diag(at::arange(2, 2 + n, at::kDouble));
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto add = [&](const char* op, std::vector<c10::IValue> arguments) -> Sample& {
    // Factors come in column order from LAPACK, of which meta kernels, where there are any, do not tell.
    all.push_back(sample(op, std::move(arguments)).at_most(24).any_strides());
    return all.back();
  };
  for (const std::int64_t batch : {3, 4}) {
    const auto a = definite(batch, 3), b = values({batch, 3, 2}), wide = values({batch, 3, 4});
    add("aten::linalg_cholesky_ex", {a});
    add("aten::cholesky_inverse", {at::linalg_cholesky(a)});
    add("aten::cholesky_solve", {b, at::linalg_cholesky(a)});
    add("aten::linalg_inv_ex", {a});
    add("aten::_linalg_det", {a}).without_gradient();
    add("aten::_linalg_slogdet", {a}).without_gradient();
    add("aten::_linalg_eigh", {a, "L", false}).without_gradient();
    add("aten::_linalg_eigh", {a, "L", true}).without_gradient();
    add("aten::linalg_eig", {a}).without_gradient();
    add("aten::_linalg_eigvals", {a}).without_gradient();
    for (const char* mode : {"reduced", "complete", "r"})
      add("aten::linalg_qr", {wide, mode}).without_gradient();
    // Its backward formula writes to a diagonal in place, which is refused where the matrix is cut.
    add("aten::linalg_qr", {a, "reduced"}).without_gradient();
    add("aten::_linalg_svd", {a, false, true}).without_gradient();
    add("aten::_linalg_svd", {wide, false, false}).without_gradient();
    add("aten::linalg_lu", {a, true}).without_gradient();
    add("aten::linalg_lu_factor_ex", {a});
    const auto [lu, pivots] = at::linalg_lu_factor(a);
    add("aten::lu_unpack", {lu, pivots, true, true}).without_gradient();
    add("aten::lu_unpack", {lu, pivots, false, true}).without_gradient();
    add("aten::linalg_lu_solve", {lu, pivots, b, true, false});
    add("aten::linalg_lu_solve", {lu, pivots, b.mT().contiguous(), false, false}).without_gradient();
    add("aten::_linalg_solve_ex", {a, b, true, false}).without_gradient();
    add("aten::_linalg_solve_ex", {a, values({batch, 3}), true, false}).without_gradient();
    add("aten::linalg_solve_triangular", {a, b, true, true, false});
    add("aten::linalg_solve_triangular", {a, b.mT().contiguous(), false, false, true}).without_gradient();
    add("aten::triangular_solve", {b, a, true, false, false}).without_gradient();
    const auto [factor, ldl_pivots, info] = at::linalg_ldl_factor_ex(a);
    add("aten::linalg_ldl_factor_ex", {a, false, false}).without_gradient();
    add("aten::linalg_ldl_solve", {factor, ldl_pivots, b, false}).without_gradient();
    add("aten::linalg_matrix_exp", {a * 0.1});
    const auto [reflectors, tau] = at::geqrf(a);
    add("aten::geqrf", {a}).without_gradient();
    add("aten::linalg_householder_product", {reflectors, tau}).without_gradient();
    add("aten::ormqr", {reflectors, tau, b, true, false}).without_gradient();
    add("aten::linalg_cross", {values({batch, 3, 2}), values({1, 3, 2}), 1});
    for (const char* op : {"aten::tril", "aten::triu"})
      for (const std::int64_t diagonal : {-1, 0, 2}) add(op, {values({batch, 5, 4}), diagonal});
    all.push_back(program("linalg.inv", {a}, [](const Tensors& x) {
                    return Tensors{at::linalg_inv(x[0]).clone(at::MemoryFormat::Contiguous)};
                  }).reaches({"aten::_linalg_check_errors"}));
  }
  for (const auto& shape : {Numbers{5, 4}, Numbers{3, 6}, Numbers{1, 2}}) add("aten::trace", {values(shape)});
  return all;
}

const SampleFile file("linear algebra", samples);
TEST_CASE("linear algebra") { CHECK(file.failures(GENERATE(Numbers{2}, Numbers{3}, Numbers{2, 2})) == ""); }

}  // namespace
}  // namespace dtensor::brute
