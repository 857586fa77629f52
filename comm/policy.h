// Policy: what the library may do quietly. One per World, changed for a scope by PolicyGuard.
#pragma once

#include <cstdint>

namespace dtensor {

enum class Fallback : std::uint8_t {
  allow,
  warn,
  error
};  // an operator without a rule, run on replicated inputs
enum class ImplicitMoves : std::uint8_t { allow, error };             // an operator that must move an input
enum class PlainTensors : std::uint8_t { error, replicate_checked };  // a plain tensor that meets a DTensor

struct Policy {
  Fallback fallback = Fallback::warn;
  ImplicitMoves implicit_moves = ImplicitMoves::allow;
  PlainTensors plain_tensors = PlainTensors::error;

  // Everything an error: nothing moves or is replicated unless the program says so.
  static Policy strict() { return {Fallback::error, ImplicitMoves::error, PlainTensors::error}; }
  friend bool operator==(const Policy&, const Policy&) = default;
};

class World;

// Sets the policy of a World for a scope; restores the former one at its end.
class PolicyGuard {
 public:
  explicit PolicyGuard(Policy policy);  // of the current World
  PolicyGuard(World& world, Policy policy);
  ~PolicyGuard();
  PolicyGuard(const PolicyGuard&) = delete;
  PolicyGuard& operator=(const PolicyGuard&) = delete;

 private:
  World* world_;
  Policy former_;
};

}  // namespace dtensor
