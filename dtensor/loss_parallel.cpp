#include "dtensor/loss_parallel.h"

namespace dtensor {
namespace {
thread_local int depth = 0;
}  // namespace

LossParallel::LossParallel() { ++depth; }
LossParallel::~LossParallel() { --depth; }
bool LossParallel::active() { return depth > 0; }

}  // namespace dtensor
