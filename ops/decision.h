// Decision: what a call does on this mesh: the layouts its inputs need, the layouts of its results, the local call.
#pragma once

#include "ops/rule.h"

#include <memory>
#include <string>
#include <vector>

namespace dtensor {

// Where the global size of one result dimension comes from.
struct SizeSource {
  std::int16_t operand = -1;  // -1: the local result's own size
  std::int16_t dim = 0;
};

struct ResultDecision {
  const Layout* layout = nullptr;
  std::vector<SizeSource> size_sources;       // per dimension; empty when `sizes` are set
  std::vector<std::int64_t> sizes;            // global sizes, where the rule states them
  std::vector<int> memory_order;              // dimensions from outermost to innermost in memory; empty = contiguous
  std::vector<std::int64_t> strides;          // global strides, for views (whose sizes are in the key)
  std::vector<ViewDim> view_dims;             // for views whose strides do not depend on sizes
  bool defined = true;
};

struct Decision {
  std::vector<const Layout*> operands;        // layout each operand must have; nullptr: as it is (undefined, or plain without a rule)
  std::vector<ResultDecision> results;
  LocalKernel kernel = nullptr;
  std::vector<std::pair<int, int>> size_arguments;
  // Operand dimensions that must agree in size for the decision to hold: pairs {operand, dim} of one factor each.
  std::vector<std::vector<SizeSource>> equal_sizes;
  bool moves = false;          // some DTensor operand must move
  bool slices_plain = false;   // some plain operand must be cut
  bool fallback = false;       // no rule: runs on replicated inputs
  bool list_result = false;
  bool view = false;
  bool by_sizes = false;       // sizes decided (they must be part of the cache key)
  double cost = 0;
  std::string note;            // for explain: the runner-up
};

// Decides a call by its rule. `in_place`: results are written into operand 0, whose layout may not change.
// Errors: UnsupportedError when operand 0 would have to move for an in-place call, with what the user can do.
std::shared_ptr<Decision> decide(const OperatorCall& call, const Rule& rule, bool in_place);

// Everything replicated: for operators without a rule. Results get layout Replicate, sizes as computed.
std::shared_ptr<Decision> decide_fallback(const OperatorCall& call);

}  // namespace dtensor
