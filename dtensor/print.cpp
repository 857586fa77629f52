#include "dtensor/print.h"

#include "dtensor/explain.h"
#include "dtensor/meta.h"

#include <ATen/core/Formatting.h>

#include <sstream>

namespace dtensor {

std::string to_string(const DTensor& tensor) {
  std::ostringstream text;
  text << tensor;
  return text.str();
}

std::ostream& operator<<(std::ostream& stream, const DTensor& tensor) {
  stream << explain(tensor);
  const auto& data = detail::meta(tensor);
  if (!data.mesh->member) return stream;
  return stream << "\n" << data.local;
}

}  // namespace dtensor
