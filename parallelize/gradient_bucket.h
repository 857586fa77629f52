// A bucket: the parameters whose gradients are summed over the data-parallel mesh dimension in one all-reduce.
#pragma once

#include "comm/device_mesh.h"
#include "comm/group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dtensor::detail {

struct DataParallelReduction {
  c10::intrusive_ptr<MeshState> mesh;
  int mesh_dim = 0;
  std::optional<at::ScalarType> dtype;  // to sum in; none: the gradients' own
};

// See Note [Gradient synchronisation] for the life of a bucket.
class GradientBucket {
 public:
  explicit GradientBucket(const std::vector<at::Tensor>& parameters);

  std::vector<at::Tensor> parameters() const;

  // Around an accumulation into the gradient of one of its parameters. One that comes after the launch is added to the sum,
  // for which it waits, and makes the bucket stale: it has to be summed once more.
  void before_accumulation(const DataParallelReduction& reduction);
  void after_accumulation();

  // Whether every gradient is there, placed as expected.
  bool is_ready(const DataParallelReduction& reduction) const;
  bool is_launched() const { return launched_; }
  bool is_stale() const { return stale_; }
  bool is_abandoned() const { return abandoned_; }

  // Starts the sum of this rank's gradients with the others'. A gradient that is whole on the mesh dimension counts on
  // coordinate 0 only, a missing one as zeros. `more` numbers are summed along; finish() returns their sums. From here on,
  // the gradients are pieces of the buffer that is summed.
  void launch(const DataParallelReduction& reduction, Group& group, const std::vector<double>& more = {});
  // Waits; the gradients are whole on the mesh dimension then. A parameter that had a gradient on no rank keeps none.
  std::vector<double> finish(const DataParallelReduction& reduction);

  // The backward pass has failed: what it launched is of no use, but the other ranks' launches pair with it.
  void abandon();
  // Ready for the next pass.
  void reset();

  // What this rank knows about the placements of its gradients, for the sum over the ranks, and what the sums tell.
  std::vector<double> observations(const DataParallelReduction& reduction) const;
  void expect(const DataParallelReduction& reduction, const double* sums);

 private:
  struct Entry {
    at::Tensor parameter;
    std::vector<int> pending;      // the other mesh dimensions on which all ranks expect its gradient to be pending
    std::int64_t elements = 0;     // launched
    bool is_missing_here = false;  // it was when launched
  };

  std::vector<Entry> entries_;
  std::size_t arrived_ = 0;
  bool launched_ = false, finished_ = false, stale_ = false, abandoned_ = false;
  at::Tensor flat_;  // gradients, observations, `more`
  Work work_;
  std::size_t more_ = 0;
};

}  // namespace dtensor::detail
