#include "dtensor/explain.h"

#include "dtensor/dtensor.h"
#include "dtensor/meta.h"
#include "placements/shard_math.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dtensor {
namespace {
thread_local Explain* innermost = nullptr;

const char* to_string(WishFamily family) {
  switch (family) {
    case WishFamily::matmul: return "matmul";
    case WishFamily::embedding: return "embedding";
    case WishFamily::norm: return "norm";
  }
  return "?";
}

std::string describe(const std::vector<WishedPlacement>& wishes, const MeshLayout& mesh) {
  std::vector<std::string> parts;
  for (const auto& wish : wishes)
    parts.push_back(fmt::format("{}: {}", mesh.names()[static_cast<std::size_t>(wish.mesh_dim)], wish.placement.to_string()));
  return fmt::format("{}", fmt::join(parts, ", "));
}
}  // namespace

Explain::Explain() : former_(innermost) { innermost = this; }
Explain::~Explain() { innermost = former_; }
Explain* Explain::current() { return innermost; }

std::string Explain::to_string() const {
  std::string text;
  for (const auto& entry : operators_) {
    text += fmt::format("{}({}) -> {}", entry.name, fmt::join(entry.inputs, ", "), fmt::join(entry.outputs, ", "));
    if (entry.fallback) text += "  [no rule: replicated inputs]";
    if (!entry.note.empty()) text += fmt::format("  [{}]", entry.note);
    text += "\n";
  }
  return text;
}

std::string explain(const at::Tensor& tensor) {
  if (!is_dtensor(tensor))
    return fmt::format("plain tensor [{}] {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
  const auto& data = detail::meta(tensor);
  std::string text = fmt::format("DTensor [{}] {} {}; rank {} holds [{}]", fmt::join(tensor.sizes(), ", "),
                                 c10::toString(tensor.scalar_type()), data.layout->to_string(),
                                 data.mesh->world->rank(), fmt::join(data.local.sizes(), ", "));
  if (data.gathered) text += "; a view that had to move data: it does not share memory with its base";
  if (data.wishes)
    for (const auto& wish : *data.wishes)
      text += fmt::format("; wish for {}: input {{{}}}, output {{{}}}{}", to_string(wish.family),
                          describe(wish.input, data.layout->mesh()), describe(wish.output, data.layout->mesh()),
                          wish.pending_gradient ? ", pending gradient" : "");
  return text;
}

}  // namespace dtensor
