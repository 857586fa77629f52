// Named points of a module: where a plan can reach the forward of a module of the user's own. The C++ frontend has no
// forward hooks, so the module says it itself:
//
//   AttentionImpl() { ...; dtensor::declare_points(*this, {"input", "output"}); }
//   at::Tensor forward(at::Tensor x) {
//     x = dtensor::constrain(*this, "input", x);
//     ...
//     return dtensor::constrain(*this, "output", y);
//   }
//
// Without a plan, or with one that does not name the module, constrain returns its argument.
#pragma once

#include "comm/device_mesh.h"
#include "placements/placement.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

// Says that the forward of modules of this type passes these points to constrain ("input", "output"). Called in the
// constructor; once per type is enough.
void declare_points(torch::nn::Module& module, const std::vector<std::string>& points);

// `tensor`, brought to where a plan's prepare_input or prepare_output wants it at this point of this module; itself
// when no plan does. A plain tensor is this rank's part in the layout that the rule's "input" or "output" states (one
// mesh dimension only). Errors: UnsupportedError for a plain tensor otherwise.
at::Tensor constrain(torch::nn::Module& module, const std::string& point, const at::Tensor& tensor);

namespace detail {

struct PreparedPoint {
  std::string point;               // "input" or "output"
  std::optional<Placement> comes;  // the layout of a plain tensor there
  Placement desired;
};

std::vector<std::string> declared_points(const torch::nn::Module& module);

// From now on constrain acts at these points of `module`.
void prepare_points(torch::nn::Module& module, const DeviceMesh& mesh, const std::vector<int>& mesh_dims,
                    std::vector<PreparedPoint> points);
// The same for a child of a Sequential: the Sequential calls it through a wrapper that constrains its argument and
// result. Registered names do not change. The child takes and returns one tensor.
void prepare_child(torch::nn::Module& sequential, torch::nn::Module& child, const DeviceMesh& mesh,
                   const std::vector<int>& mesh_dims, std::vector<PreparedPoint> points);
// Undoes both for every module of the tree.
void forget_points(torch::nn::Module& root, World& world);

}  // namespace detail
}  // namespace dtensor
