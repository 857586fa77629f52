// LibTorch's operators (Compile.cmake). Files still include what they use: the build works without it.
#pragma once
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
