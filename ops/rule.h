// Rule: what an operator means for shards, by factors, as in einsum.
//
// A factor is a letter for a dimension that operands and results share: mm is `mk,kn->mn`. Sharding a factor on a mesh
// dimension shards every tensor dimension that carries it; operands without it must be whole there; results without it
// are pending by the factor's reduction. A factor that may not be sharded is `whole`.
// One rule answers for one call (its ranks and arguments); rules of an operator are made by a RuleFunction.
#pragma once

#include "ops/operator_call.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

struct KernelContext;

// Runs on local tensors in place of the stock operator: takes the arguments off the stack and leaves the results.
using LocalKernel = void (*)(const KernelContext& context, std::vector<c10::IValue>& stack);

struct Factor {
  enum class Kind : std::uint8_t {
    pass,    // every result has it
    reduce,  // results without it are pending by `op`
    whole,   // never sharded
  };
  Kind kind = Kind::pass;
  ReduceOp op = ReduceOp::sum;
  // Sharded only where `size` divides evenly by the ranks that cut it: the leading part of a flattened dimension, or the
  // number of groups of dimensions that differ in size (query and key heads).
  bool even_only = false;
  std::int64_t size = 0;  // only for even_only
  // Dimensions of different sizes carry it, cut in order and by one mesh dimension at most; the kernel fetches what its piece
  // of the results reads beyond its piece of an operand (halo.h).
  bool halo = false;
  // Note [Packed dimensions]
  // An interleaved cut holds a rank's piece of every part of a packed dimension (q, k and v of one weight), so taking the
  // parts apart and putting them together again moves nothing. `split`: sharded only as operand 0 is cut, by an
  // interleaved cut; each result has the parts that ResultRule::parts names. `join`: sharded only where every operand is
  // cut already; the result is interleaved, its parts are the operands' in order.
  enum class Packing { none, split, join };
  Packing packing = Packing::none;
};

inline constexpr int no_factor = -1;  // a dimension of size 1, broadcast, or made by the operator: never sharded

// A dimension of a view: it runs along a dimension of operand 0, `times` of its elements a step, or it was added.
struct ViewDim {
  int source = -1;
  std::int64_t times = 1;
};

struct ResultRule {
  std::vector<int> dims;                 // the factor of each dimension, or no_factor
  std::vector<std::int64_t> sizes;       // global sizes where letters do not tell them (views); else empty
  bool completed = false;                // the kernel finishes the reduction: Replicate where a missing factor is sharded
  bool defined = true;                   // false: the operator returns an undefined tensor here
  std::vector<ViewDim> view_dims = {};   // of a view whose strides these tell, whatever the sizes are; else empty
  std::pair<std::size_t, std::size_t> parts = {};  // {first, count} of a packed dimension (Packing::split)
  bool alike = false;                    // with `completed`: nothing to reduce, every rank has the same result anyway
};

struct Rule {
  std::vector<Factor> factors;
  std::vector<std::vector<int>> operands;  // per operand, per dimension: a factor or no_factor
  std::vector<ResultRule> results;

  // Sets of operands in which the operator is linear together: when exactly those are pending (by sum or avg) and the
  // others whole, the results are pending too. {{0, 1}} for add; {{0}, {1}} for mul.
  std::vector<std::vector<int>> linear;
  // Pending values of any kind pass unchanged from operand 0 to all results (views, clone, casts to floating types).
  bool passes_any_pending = false;
  // Results that are not pending even when operand 0 is (a factory such as ones_like): Replicate instead.
  bool ignores_values = false;

  LocalKernel kernel = nullptr;  // nullptr: the stock operator
  // Arguments that hold sizes of a result and become local ones: {argument, result}.
  std::vector<std::pair<int, int>> size_arguments;
  // The decision depends on the full sizes (views, even_only): they enter the cache key.
  bool by_sizes = false;
  // The operator returns one list with all results.
  bool list_result = false;
  // Results are views of operand 0 where nothing moved.
  bool view = false;
  // The rule's kernel works on operands as they are placed: nothing is moved and results take operand 0's layout.
  bool keeps_layouts = false;
};

// Makes the rule of a call, or nothing when this form of the operator has none. Pure: a function of the call alone.
using RuleFunction = std::optional<Rule> (*)(const OperatorCall& call);

struct RuleEntry {
  RuleFunction function = nullptr;
  bool scalars_matter = false;  // number arguments (not only integers and booleans) alter the sharding or the kernel
  // The dispatcher's decomposition into other operators is used instead of a rule.
  bool decompose = false;
};

// The rule of an operator ("aten::add.Tensor"), or nullptr. In-place variants ("aten::add_.Tensor") share the rule of
// the functional one.
const RuleEntry* find_rule(const std::string& name);

// Adds the rule of an operator that has none here, such as one of the program's own, or takes another one for it. Call it
// before the first mesh is made, from main() or a static initializer: operators are taken up then.
// Errors: UnsupportedError afterwards. A rule that is not true gives wrong results: see docs/semantics.md.
void register_rule(const std::string& name, RuleEntry entry);
void register_rule(const std::string& name, RuleFunction function);

// The rule of element-wise operators, for those that LibTorch marks so (at::Tag::pointwise) and no table names.
const RuleEntry& pointwise_rule();

// All names with a rule, sorted; for tests and documentation.
std::vector<std::string> rule_names();

namespace detail {
// Called by the files of rules, from register_all_rules().
void add_rule(const std::string& name, RuleEntry entry);
inline void add_rule(const std::string& name, RuleFunction function) { add_rule(name, RuleEntry{function}); }
}  // namespace detail

}  // namespace dtensor
