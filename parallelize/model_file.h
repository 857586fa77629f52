// A module's description from a file, without the program: names and sizes.
#pragma once

#include "parallelize/module_description.h"

#include <string>

namespace dtensor {

// From JSON, one entry per tensor or module:
//
//   {"tok.weight": [32000, 4096],                              sizes; or, as in the header of a safetensors file,
//    "n1.weight": {"shape": [4096], "dtype": "BF16"},          with a dtype
//    "emb.weight": {"shape": [64, 8], "type": "Embedding"},    with the type of its module
//    "head.weight": "tok.weight",                              tied to another
//    "drop": null,                                             a module without parameters
//    "mlp": {"type": "Sequential"}}                            a module's type, where a plan's meaning depends on it
//
// The type of a module that the file does not state is told from its tensors: a vector `weight` is a norm; a matrix
// `weight` a Linear, or an Embedding where the module's name has "emb", "tok", "wte", "wpe" or "vocab" in it and there is
// no bias. Errors: Error that says what cannot be read and where.
ModuleDescription describe_names(const std::string& json);

// From a .json file as above, or a .safetensors file, of which only the header is read.
ModuleDescription describe_file(const std::string& path);

}  // namespace dtensor
