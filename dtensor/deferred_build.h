// DeferredBuild: modules built without memory, whose values are drawn later, each rank its own part.
#pragma once

#include "dtensor/dtensor.h"

#include <memory>
#include <utility>
#include <vector>

namespace dtensor {

// Note [Deferred build]
// Inside build(), factories give meta tensors: sizes without memory. What is done to them (kaiming_uniform_, fill_, casts,
// views) is recorded, operator by operator. materialize() runs the record again on DTensors that are placed from the start
// as they are wanted, so no rank ever holds a whole tensor. Random operators draw by global element index from the mesh's
// state (manual_seed), so the same seed gives the same values on every mesh and under every plan; they are not those that
// LibTorch's generator would have given.
//
//   DeferredBuild deferred;
//   auto model = deferred.build([&] { return GPT(options); });
//   parallelize_module(*model, mesh, plan, {.deferred = &deferred});
//
// Tensors with a stated device, and those made from values on the host (torch::tensor({...})), have memory as ever.
// Reading a value inside build() is LibTorch's error about meta tensors. A tensor that is written through a view of it
// (an Embedding's row of padding) is whole while the record runs.
class DeferredBuild {
 public:
  DeferredBuild();
  ~DeferredBuild();
  DeferredBuild(const DeferredBuild&) = delete;
  DeferredBuild& operator=(const DeferredBuild&) = delete;

  // Runs `make` on this thread and returns what it makes. May be called again; all is one record.
  template <typename Make>
  auto build(Make&& make) {
    const Recording recording(*this);
    return std::forward<Make>(make)();
  }

  // The values of meta tensors that were made in build(), one DTensor for each. No communication but what recorded
  // operators need. Errors: UnsupportedError for a tensor that was not made there, and for recorded random operators that
  // have no form by element index.
  std::vector<DTensor> materialize(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                   const std::vector<Placements>& placements) const;

  struct Record;

 private:
  class Recording {
   public:
    explicit Recording(DeferredBuild& build);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    Record* former_;
    bool was_included_;
  };
  std::unique_ptr<Record> record_;
};

}  // namespace dtensor
