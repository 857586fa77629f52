#include "parallelize/custom_style.h"

#include "parallelize/style_names.h"
#include "placements/error.h"

#include <fmt/format.h>

#include <mutex>

namespace dtensor {
namespace {

PlanError plan_error(std::string text) { return PlanError(std::vector<std::string>{std::move(text)}); }

struct Registry {
  std::mutex mutex;
  std::map<std::string, CustomStyle> styles;
};
Registry& registry() {
  static auto* styles = new Registry;
  return *styles;
}

}  // namespace

void register_style(const std::string& name, CustomStyle style) {
  if (name.empty()) throw plan_error("register_style: the name is empty");
  for (const auto& [tensor, placement] : style.tensors)
    if (placement.is_partial())
      throw plan_error(fmt::format("register_style(\"{}\"): \"{}\" cannot be {}: parameters are cut or whole", name, tensor,
                                  placement.to_string()));
  const bool known = detail::find_custom_style(name).has_value();
  if (!known && detail::style_of_name(name))
    throw plan_error(fmt::format("register_style(\"{}\"): a style of this library has the name", name));
  auto& styles = registry();
  const std::lock_guard lock(styles.mutex);
  const auto [place, added] = styles.styles.try_emplace(name, style);
  if (!added && place->second != style)
    throw plan_error(fmt::format("register_style(\"{}\"): the name is taken by another style: {}", name,
                                detail::to_text(place->second)));
}

Style RegisteredStyle(const std::string& name) {
  const auto style = detail::style_of_name(name);
  if (!style || style->kind != StyleKind::custom)
    throw plan_error(fmt::format("no style is registered as \"{}\"; call register_style first", name));
  return *style;
}

std::optional<CustomStyle> detail::find_custom_style(const std::string& name) {
  auto& styles = registry();
  const std::lock_guard lock(styles.mutex);
  const auto found = styles.styles.find(name);
  return found == styles.styles.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> detail::custom_style_names() {
  auto& styles = registry();
  const std::lock_guard lock(styles.mutex);
  std::vector<std::string> names;
  for (const auto& [name, style] : styles.styles) names.push_back(name);
  return names;
}

std::string detail::style_name(const Style& style) {
  return style.kind == StyleKind::custom ? style.custom : dtensor::to_string(style.kind);
}

std::string detail::to_text(const CustomStyle& style) {
  std::string text;
  for (const auto& [name, placement] : style.tensors) text += fmt::format("{} {}, ", name, placement.to_string());
  const auto point = [](const std::optional<Placement>& placement) {
    return placement ? placement->to_string() : std::string("as it comes");
  };
  return text + fmt::format("input {}, output {}", point(style.input), point(style.output));
}

}  // namespace dtensor
