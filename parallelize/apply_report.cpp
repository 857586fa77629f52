#include "parallelize/apply_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace dtensor {

std::int64_t ApplyReport::bytes() const {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.bytes;
  return sum;
}
std::int64_t ApplyReport::local_bytes() const {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.local_bytes;
  return sum;
}
std::int64_t ApplyReport::replicated_bytes() const {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors)
    if (tensor.local_bytes == tensor.bytes) sum += tensor.bytes;
  return sum;
}

std::string ApplyReport::to_string() const {
  std::string text = fmt::format("{:<32} {:<16} {:<28} {:<16} {:>12}  {}\n", "tensor", "global", "placements",
                                 "this rank", "bytes", "rule");
  for (const auto& tensor : tensors)
    text +=
        fmt::format("{:<32} {:<16} {:<28} {:<16} {:>12}  {}\n", tensor.name,
                    fmt::format("[{}]", fmt::join(tensor.sizes, ", ")), dtensor::to_string(tensor.placements),
                    fmt::format("[{}]", fmt::join(tensor.local_sizes, ", ")), tensor.local_bytes,
                    tensor.rule.empty() ? "-" : tensor.rule);
  text += fmt::format("{} bytes of {} on this rank, {} of them held by every rank\n", local_bytes(), bytes(),
                      replicated_bytes());
  for (const auto& note : notes) text += "note: " + note + "\n";
  return text;
}

std::string ApplyReport::to_json() const {
  using nlohmann::ordered_json;
  ordered_json list = ordered_json::array();
  for (const auto& tensor : tensors) {
    ordered_json placements = ordered_json::array();
    for (const auto& placement : tensor.placements) placements.push_back(placement.to_string());
    list.push_back({{"name", tensor.name},
                    {"aliases", tensor.aliases},
                    {"sizes", tensor.sizes},
                    {"placements", placements},
                    {"local_sizes", tensor.local_sizes},
                    {"bytes", tensor.bytes},
                    {"local_bytes", tensor.local_bytes},
                    {"rule", tensor.rule},
                    {"buffer", tensor.buffer}});
  }
  ordered_json document{{"tensors", list},
                        {"bytes", bytes()},
                        {"local_bytes", local_bytes()},
                        {"replicated_bytes", replicated_bytes()},
                        {"notes", notes}};
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace dtensor
