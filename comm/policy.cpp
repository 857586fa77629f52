#include "comm/policy.h"

#include "comm/world.h"

namespace dtensor {

PolicyGuard::PolicyGuard(Policy policy) : PolicyGuard(World::current(), policy) {}

PolicyGuard::PolicyGuard(World& world, Policy policy) : world_(&world), former_(world.policy()) {
  world.set_policy(policy);
}

PolicyGuard::~PolicyGuard() { world_->set_policy(former_); }

}  // namespace dtensor
