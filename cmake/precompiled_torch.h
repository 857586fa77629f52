// LibTorch's whole interface, for what uses modules or optimizers (Compile.cmake). Files still include what they use: the
// build works without it.
#pragma once
#include <torch/torch.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
