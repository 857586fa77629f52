// One combination of placements of one sample, as one rank sees it, against the plain result.
#pragma once

#include "brute_force.h"

#include "comm/device_mesh.h"

namespace dtensor::brute {

// What a sample means: computed once, read by all ranks.
struct Reference {
  Tensors results;
  std::vector<std::vector<bool>> aliases;  // [result][input]: shares memory
  Tensors weights;    // per result, undefined where no gradient flows: the gradient given to backward
  Tensors gradients;  // per input; empty when nothing is differentiated
};

// What the operators of a combination did.
struct Trace {
  std::set<std::string> with_rule, without_rule;
};

// Runs a sample on these inputs, in place of its own.
Tensors run_sample(const Sample& sample, const Tensors& inputs);

Reference make_reference(const Sample& sample);

// Runs the sample with inputs placed so and compares. Returns what is wrong on this rank, "" when nothing is. Throws what
// the operators throw. Every rank issues the same collectives whatever it finds. `number` varies the placement of
// incoming gradients and the parts of pending values.
std::string check_combination(const Sample& sample, const Reference& reference,
                              const Combination& combination, const DeviceMesh& mesh, std::uint64_t number,
                              Trace& trace);

}  // namespace dtensor::brute
