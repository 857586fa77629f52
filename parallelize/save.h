// Parallel modules and optimizers in the files of torch::save and torch::load.
#pragma once

#include <string>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace dtensor {

// Note [Files of torch::save]
// torch::save reads the memory of every tensor, which a DTensor has not, so on a parallel module it throws ("use
// to_local()"). These write the same format, with whole values under the names of the plain module, so a file serves a
// plain program, another mesh or another plan alike. Values are stored for the CPU.
//
// All ranks of the mesh call them. The first one writes or reads; it tells the others how that went, so that all throw
// alike. torch::load(module, path) on a parallel module works as well: each rank then reads the whole file.

// What torch::save(module, path) writes for the plain module. Gathers one tensor after another; those that were
// gathered wait in an unnamed file beside `path`, not in memory. The file appears at `path` when it is complete.
// Buffers and children as Module::save has them; a module's own override of save is not called. Errors: Error on all
// ranks when the file cannot be written.
void save(const torch::nn::Module& module, const std::string& path);
// The same for an optimizer that has stepped, of any parameters.
void save(torch::optim::Optimizer& optimizer, const std::string& path);

// Reads what these or torch::save wrote: the first rank holds the whole file, the others get their parts. Placements
// stay. Errors: Error on all ranks, before anything changes, when the file cannot be read, lacks a tensor or has it in
// other sizes.
void load(torch::nn::Module& module, const std::string& path);
// Options, step counters and state; the parameters must be those of the saved optimizer, in the same groups and order.
void load(torch::optim::Optimizer& optimizer, const std::string& path);

}  // namespace dtensor
