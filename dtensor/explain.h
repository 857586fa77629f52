// Explain: what a block of code did, operator by operator.
#pragma once

#include "placements/placement.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace dtensor {

// One operator as it ran.
struct ExplainedOperator {
  std::string name;
  std::vector<std::string> inputs;   // "[4, 8] [Shard(0), Replicate]", with " -> [...]" where it moved
  std::vector<std::string> outputs;
  bool fallback = false;             // ran on replicated inputs for want of a rule
  std::string note;                  // choice made by cost, with the runner-up
};

// Records every operator that the calling thread runs on DTensors while it lives. Blocks may nest; the inner one records.
class Explain {
 public:
  Explain();
  ~Explain();
  Explain(const Explain&) = delete;
  Explain& operator=(const Explain&) = delete;

  const std::vector<ExplainedOperator>& operators() const { return operators_; }
  std::string to_string() const;

  static Explain* current();
  void add(ExplainedOperator entry) { operators_.push_back(std::move(entry)); }

 private:
  std::vector<ExplainedOperator> operators_;
  Explain* former_;
};

// How a tensor is placed: global shape, placements, mesh, this rank's part, wishes.
std::string explain(const at::Tensor& tensor);

}  // namespace dtensor
