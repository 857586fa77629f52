// Cross entropy of rows whose classes are cut over ranks: the arithmetic of one rank, a block of rows at a time.
//
// With m the largest logit of a row, S the sum of exp(x_j - m), y the target, w the class weights (1 where there are
// none), e the smoothing and K the number of classes, a row's loss is, with l = m + log S,
//   (1 - e) w_y (l - x_y)  +  (e / K) sum_j w_j (l - x_j)  +  z w_y l^2
// (the last term is the z-loss of PaLM, arXiv:2204.02311, section 5) and its gradient by x_j
//   A exp(x_j - m) / S  -  (1 - e) w_y [j = y]  -  (e / K) w_j,     A = (1 - e) w_y + (e / K) sum_j w_j + 2 z w_y l.
// A row needs the logits once for its sums and once for its gradient, and in between only four numbers.
#pragma once

#include "placements/placement.h"
#include "placements/shard_math.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace dtensor::detail {

struct LossTerms {
  std::int64_t ignore_index = -100;
  double smoothing = 0;      // e
  double z_loss = 0;         // z
  std::int64_t classes = 0;  // K: logits of classes from K on are padding
};

// Classes that this rank holds one after the other: where in its part, the first one, how many.
struct ClassRun {
  std::int64_t stored = 0, first = 0, size = 0;
};
// The runs of a rank's intervals, without the padding.
std::vector<ClassRun> class_runs(const std::vector<shard_math::Interval>& intervals, std::int64_t classes);

// A number per row, in the shape of the rows: what the loss is and what its gradient needs.
struct RowResults {
  at::Tensor losses, weights, maximum, slope;  // loss; w_y, 0 where ignored; m; A / S, 0 where ignored
};

// Rows are [outer, 1, inner], their logits [outer, classes of this rank, inner].
class ClassLoss {
 public:
  // Reduces in place over the ranks that hold the other classes.
  using AllReduce = std::function<void(at::Tensor&, ReduceOp)>;

  // `target`: a class per row. `weight`: undefined, or w of all classes, or (`weight_is_stored`) of those that this
  // rank holds. Errors: IndexError where a target, on a CPU, is no class.
  ClassLoss(LossTerms terms, std::vector<ClassRun> runs, const at::Tensor& target, const at::Tensor& weight,
            bool weight_is_stored, at::ScalarType logits_dtype);

  // Forward: every block once, then finish. Two all-reduces: of a number per row, and of two to four.
  void add(const at::Tensor& logits, std::int64_t outer, std::int64_t inner = 0);
  RowResults finish(const AllReduce& all_reduce);

  // Backward: writes the gradient of a block of logits to `gradient`, which may be the logits themselves. Columns of
  // padding are left as they are.
  void set_gradient(const at::Tensor& coefficient, const at::Tensor& maximum, const at::Tensor& slope);
  void write_gradient(const at::Tensor& logits, at::Tensor gradient, std::int64_t outer,
                      std::int64_t inner = 0) const;

  const std::vector<ClassRun>& runs() const { return runs_; }

 private:
  struct Picked {
    at::Tensor index, other;  // of the target within the run, 0 where it is in another; where it is
  };
  Picked pick(const ClassRun& run, const at::Tensor& target) const;
  at::Tensor run_weight(const ClassRun& run) const;  // [size, 1]
  at::Tensor rows(const at::Tensor& all, const at::Tensor& block, std::int64_t outer,
                  std::int64_t inner) const;
  bool smooth() const { return terms_.smoothing > 0; }

  LossTerms terms_;
  std::vector<ClassRun> runs_;
  at::Tensor target_, ignored_, weight_;
  bool weight_is_stored_;
  at::TensorOptions options_;  // of the numbers per row
  at::Tensor maximum_, sum_, picked_, spread_, row_weight_;
  at::Tensor gradient_factor_, target_factor_, class_factor_;  // per row, of exp(x - m), [j = y] and w_j
};

// Visits [outer, inner] rows of `classes` logits in blocks that stay in a cache: visit(outer, count, inner, count).
void for_blocks(std::int64_t outer, std::int64_t classes, std::int64_t inner, bool cpu,
                const std::function<void(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& visit);

}  // namespace dtensor::detail
