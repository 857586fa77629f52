// What the precompiled header holds (Compile.cmake). Files still include what they use: the build works without it.
#pragma once
#include <torch/torch.h>
