#include "parallelize/plan_agreement.h"

#include "parallelize/custom_style.h"
#include "parallelize/plan_fault.h"
#include "parallelize/read_plan.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <sstream>

namespace dtensor::detail {
namespace {

// FNV-1a: the same on all machines, unlike std::hash.
std::int64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  return static_cast<std::int64_t>(hash);
}

// Plan and module as lines of text.
std::string lines_of(const ParallelPlan& plan, const ModuleDescription& module) {
  ParallelPlan part = plan;
  part.rules.clear();
  std::string text = plan_text(part, -1) + "\n";
  part = {};
  for (const auto& rule : plan.rules) {
    part.rules = {rule};
    text += plan_text(part, -1) + "\n";
    if (const auto custom = find_custom_style(rule.style.custom)) text += rule.style.custom + ": " + to_text(*custom) + "\n";
  }
  for (const auto& tensor : module.tensors)
    text += fmt::format("{} {} [{}] {}\n", tensor.buffer ? "buffer" : "parameter", tensor.name,
                        fmt::join(tensor.sizes, ", "), tensor.dtype);
  return text;
}

std::vector<std::string> gather_texts(const std::string& text, const std::vector<std::int64_t>& lengths,
                                      Group& group, c10::Device device) {
  std::vector<at::Tensor> outputs;
  for (const auto length : lengths)
    outputs.push_back(at::empty({length}, at::TensorOptions(at::kByte).device(device)));
  auto own = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(own.data_ptr(), text.data(), text.size());
  group.all_gather(outputs, own.to(device)).wait();
  std::vector<std::string> texts;
  for (const auto& output : outputs) {
    const auto bytes = output.cpu();
    texts.emplace_back(static_cast<const char*>(bytes.const_data_ptr()),
                       static_cast<std::size_t>(bytes.numel()));
  }
  return texts;
}

std::string difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  std::string x, y;
  do {
    x = y = "(nothing)";
    const bool more_left = static_cast<bool>(std::getline(left, x)),
               more_right = static_cast<bool>(std::getline(right, y));
    if (!more_left && !more_right) break;
  } while (x == y);
  const auto trimmed = [](const std::string& line) {
    return line.substr(std::min(line.find_first_not_of(' '), line.size()));
  };
  return fmt::format("'{}' instead of '{}'", trimmed(y), trimmed(x));
}

}  // namespace

void check_agreement(const ParallelPlan& plan, const ModuleDescription& module, const DeviceMesh& mesh) {
  if (mesh.size() == 1 || !mesh.is_member()) return;
  const CollectiveReason reason("plan agreement");
  auto& group = mesh.whole_group();
  const auto text = lines_of(plan, module);
  const auto options = at::TensorOptions(at::kLong).device(mesh.device());
  std::vector<at::Tensor> outputs;
  for (int i = 0; i < group.size(); ++i) outputs.push_back(at::empty({2}, options));
  const auto own =
      at::tensor({hash_of(text), static_cast<std::int64_t>(text.size())}, at::kLong).to(mesh.device());
  group.all_gather(outputs, own).wait();
  const auto known = at::stack(outputs).cpu();
  const auto* values = known.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> lengths, others;
  for (int i = 0; i < group.size(); ++i) {
    lengths.push_back(values[2 * i + 1]);
    if (values[2 * i] != values[0] || values[2 * i + 1] != values[1]) others.push_back(i);
  }
  if (others.empty()) return;
  const auto texts = gather_texts(text, lengths, group, mesh.device());
  std::vector<std::int64_t> ranks;
  for (const auto other : others) ranks.push_back(group.ranks()[static_cast<std::size_t>(other)]);
  PlanFault fault;
  fault.kind = FaultKind::ranks_differ;
  fault.nearest = "give every rank the same plan file and build the same module";
  const auto told = worded(std::move(fault),
                           fmt::format("rank{} {} hold{} another plan or module than rank {}: rank {} has {}",
                                       ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "),
                                       ranks.size() > 1 ? "" : "s", group.ranks()[0], ranks[0],
                                       difference(texts[0], texts[static_cast<std::size_t>(others[0])])));
  throw PlanError({told.text});
}

}  // namespace dtensor::detail
