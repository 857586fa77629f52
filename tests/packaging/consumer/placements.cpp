#include <placements/placement.h>

#include <cstdio>

int main() {
  const dtensor::Placement placement = dtensor::Placement::parse("Shard(1)");
  std::printf("%s\n", placement.to_string().c_str());
  return placement == dtensor::Shard(1) ? 0 : 1;
}
