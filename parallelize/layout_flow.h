// Layouts between modules: a consumer that expects what its producer does not give.
#pragma once

#include "parallelize/fault_collector.h"
#include "parallelize/rule_assignment.h"

namespace dtensor::detail {

// Note [Who produces what a module reads]
// The C++ frontend has no graph, so producers are known for some modules only, and only these are checked:
// - a child of a Sequential reads what the child before it gives (children without a rule that hold no parameters
//   pass on what they get);
// - a rowwise Linear reads what the Linears before it in the same parent give, back to the last rowwise one: q, k, v
//   before the output projection, gate and up before down. (All of them, since all are combined to its input.)
// - a sequence_parallel norm, and a colwise Linear or prepare_input whose rule states "input", read the residual
//   stream: what rowwise Linears and embeddings give. A stream cut on another dimension is a fault; entering a cut
//   from a whole stream is free and none. A stated input must be what the norm before the module gives, or where that
//   has no rule, what some of the stream's writers give.
// `ranks`: along the tensor-parallel dimension, for the texts.
void check_layouts(const ModuleDescription& description, const ParallelPlan& plan,
                   const RuleAssignment& rules, const std::vector<bool>& usable, std::int64_t ranks,
                   FaultCollector& faults);

}  // namespace dtensor::detail
