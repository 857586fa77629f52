// What parallelize_module did, or would do, to each tensor.
#pragma once

#include "placements/placement.h"

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

// What became of one parameter or buffer.
struct AppliedTensor {
  std::string name;                  // path of the first owner
  std::vector<std::string> aliases;  // other paths of a tied parameter
  std::vector<std::int64_t> sizes, local_sizes;
  Placements placements;
  std::int64_t bytes = 0, local_bytes = 0;
  std::string rule;  // the pattern that governs it; "" = Replicate by default
  bool buffer = false;
};

struct ApplyReport {
  std::vector<AppliedTensor> tensors;
  std::vector<std::string> notes;         // registered parameters that no forward can read, and the like
  std::int64_t bytes() const;             // of all tensors, once
  std::int64_t local_bytes() const;       // on this rank
  std::int64_t replicated_bytes() const;  // of tensors that every rank holds whole
  std::string to_string() const;          // a table
  // {"tensors": [{"name", "aliases", "sizes", "placements", "local_sizes", "bytes", "local_bytes", "rule", "buffer"}],
  //  "bytes", "local_bytes", "replicated_bytes", "notes"}
  std::string to_json() const;
};

}  // namespace dtensor
