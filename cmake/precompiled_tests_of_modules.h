// What tests of modules include (Compile.cmake). Files still include what they use: the build works without it.
#pragma once
#include "precompiled_torch.h"

#include <catch2/catch_test_macros.hpp>
