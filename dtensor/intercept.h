// Registration with LibTorch's dispatcher.
#pragma once

namespace dtensor::detail {

// Registers the kernels of this library for the PrivateUse2 keys: once per process, lazily (registering twice aborts).
// Operators that a program defines later are taken up at the next call.
void ensure_intercepted();

}  // namespace dtensor::detail
