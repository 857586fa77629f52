// One collective among thread ranks: what each asked for, the check that all asked for the same, and the
// work.
#pragma once

#include "comm/backend.h"
#include "comm/local_reduction.h"
#include "placements/placement.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

std::string describe_tensor(const at::Tensor& tensor);  // "Float [2, 3]"

struct ThreadAsk {
  Collective collective;
  ReduceOp op;
  int source;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;

  std::string to_string() const;  // "all_reduce(sum, Float [4])"
};

// Guarded by its group's lock, except run(), which the rank that came last calls without it.
class ThreadRound {
 public:
  explicit ThreadRound(std::size_t members) : asks_(members) {}

  // True for the rank that comes last to a round nobody gave up: it calls run() and then finish().
  bool arrive(int position, ThreadAsk ask);
  // Checks and does the collective; an error is kept for all ranks. Group and call are for its text.
  void run(const GroupIdentity& group, const Call& call);
  void finish() { over_ = true; }
  // A rank stopped waiting: so does everybody.
  void give_up(const std::string& text);

  bool is_over() const { return over_; }
  std::vector<std::int64_t> missing(const std::vector<std::int64_t>& ranks) const;
  // Throws the round's error if there is one; an exception object of its own for each rank.
  void rethrow() const;

 private:
  void check(const GroupIdentity& group, const Call& call) const;
  bool agree() const;
  void compute();
  const ThreadAsk& ask(std::size_t position) const { return *asks_[position]; }

  std::vector<std::optional<ThreadAsk>> asks_;
  std::size_t arrived_ = 0;
  bool over_ = false;
  std::optional<std::string> error_;
  bool is_desync_ = false;
};

// A copy with memory of its own, made below autograd.
at::Tensor copy_of(const at::Tensor& tensor);

}  // namespace dtensor::detail
