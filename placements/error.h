// The errors of this library. Every one is a c10::Error, so code that catches LibTorch's errors catches these
// too. None records a native backtrace: a user's mistake is told by its text, and ranks throw alike.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <utility>
#include <vector>

namespace dtensor {

// What every error below is.
class Error : public c10::Error {
 public:
  explicit Error(std::string message) : c10::Error(std::move(message)) {}
};

// A placement, layout or redistribution that cannot be.
class PlacementError : public Error {
 public:
  using Error::Error;
};

// An operator (or an operator on these placements) that would not be right, and is therefore refused.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

// A mesh that does not fit the world, an unknown mesh dimension, tensors of different meshes in one operator.
class MeshError : public Error {
 public:
  using Error::Error;
};

// A plan that does not fit its module, its mesh or its format. Lists all faults, not only the first.
class PlanError : public Error {
 public:
  explicit PlanError(std::vector<std::string> faults) : Error(join(faults)), faults_(std::move(faults)) {}
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  static std::string join(const std::vector<std::string>& faults) {
    std::string text = "the plan cannot be applied:";
    for (const auto& fault : faults) text += "\n  - " + fault;
    return text;
  }
  std::vector<std::string> faults_;
};

// Communication that failed: a peer died, timed out or posted an abort note.
class CommError : public Error {
 public:
  using Error::Error;
};

// Ranks of one group that asked for different collectives at the same sequence number.
class DesyncError : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace dtensor
