#include "parallelize/model_file.h"

#include "placements/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

namespace dtensor {
namespace {

using nlohmann::ordered_json;

// A header larger than this is no header (the format's own limit is 100 MB).
constexpr std::uint64_t longest_header = 100'000'000;

std::int64_t element_size(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> sizes{
      {"F64", 8},     {"I64", 8},  {"U64", 8},     {"F32", 4},     {"I32", 4},     {"U32", 4},
      {"F16", 2},     {"BF16", 2}, {"I16", 2},     {"U16", 2},     {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I8", 1},      {"U8", 1},   {"BOOL", 1},    {"float", 4},   {"float32", 4}, {"double", 8},
      {"float64", 8}, {"half", 2}, {"float16", 2}, {"bfloat16", 2}};
  const auto at = sizes.find(dtype);
  return at == sizes.end() ? 4 : at->second;
}

std::pair<std::string, std::string> split(const std::string& path) {
  const auto dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

class Reader {
 public:
  ModuleDescription run(const ordered_json& document) {
    if (!document.is_object()) fail("the file", "is no object of names");
    for (const auto& item : document.items())
      if (item.key() != "__metadata__") read(item.key(), item.value());
    for (const auto& [name, target] : ties_) tie(name, target);
    for (auto& module : result_.modules) classify(module);
    return std::move(result_);
  }

 private:
  [[noreturn]] static void fail(const std::string& name, const std::string& problem) {
    throw Error(fmt::format(
        "model file: {} {}. An entry is a list of sizes, an object with \"shape\" (and \"dtype\"), "
        "the name of the tensor it is tied to, null for a module without parameters, or an object "
        "with a module's \"type\".",
        name, problem));
  }

  void read(const std::string& name, const ordered_json& value) {
    const auto quoted = "\"" + name + "\"";
    if (value.is_null()) {
      module(name);
    } else if (value.is_array()) {
      tensor(name, value, "float32", "");
    } else if (value.is_string()) {
      module(split(name).first);
      ties_.emplace_back(name, value.get<std::string>());
    } else if (value.is_object() && value.contains("shape")) {
      tensor(name, value.at("shape"), value.value("dtype", "float32"), value.value("type", ""));
    } else if (value.is_object() && value.contains("type") && value.at("type").is_string()) {
      types_[result_.modules[module(name)].path] = value.at("type").get<std::string>();
    } else {
      fail(quoted, "is " + value.dump());
    }
  }

  void tensor(const std::string& name, const ordered_json& shape, const std::string& dtype,
              const std::string& type) {
    DescribedTensor entry;
    entry.name = name;
    entry.dtype = dtype;
    entry.element_size = element_size(dtype);
    if (!shape.is_array()) fail("\"" + name + "\"", "has the shape " + shape.dump());
    for (const auto& size : shape) {
      if (!size.is_number_integer() || size.get<double>() < 0 ||
          size.get<double>() > static_cast<double>(std::numeric_limits<std::int64_t>::max() / 2))
        fail("\"" + name + "\"", "has the shape " + shape.dump());
      entry.sizes.push_back(size.get<std::int64_t>());
    }
    const auto [owner, leaf] = split(name);
    if (!owner.empty()) attach(owner, leaf, result_.tensors.size());
    if (!type.empty()) types_[owner] = type;
    by_name_[name] = result_.tensors.size();
    result_.tensors.push_back(std::move(entry));
  }

  void tie(const std::string& name, const std::string& target) {
    const auto at = by_name_.find(target);
    if (at == by_name_.end())
      fail("\"" + name + "\"", "is tied to \"" + target + "\", which is not in the file");
    result_.tensors[at->second].aliases.push_back(name);
    const auto [owner, leaf] = split(name);
    if (!owner.empty()) attach(owner, leaf, at->second);
  }

  void attach(const std::string& owner, const std::string& leaf, std::size_t index) {
    auto& entry = result_.modules[module(owner)];
    if (leaf == "weight") entry.weight = index;
    if (leaf == "bias") entry.bias = index;
    others_[owner] = others_[owner] || (leaf != "weight" && leaf != "bias");
  }

  // The module of a path, made with its parents where it is new.
  std::size_t module(const std::string& path) {
    if (const auto at = by_path_.find(path); at != by_path_.end()) return at->second;
    const auto parent = split(path).first;
    if (!parent.empty()) {
      module(parent);
      has_children_[parent] = true;
    }
    DescribedModule entry;
    entry.path = path;
    by_path_[path] = result_.modules.size();
    result_.modules.push_back(std::move(entry));
    return result_.modules.size() - 1;
  }

  void classify(DescribedModule& entry) {
    const auto type = types_.find(entry.path);
    const auto parent = types_.find(split(entry.path).first);
    entry.in_sequential = parent != types_.end() && parent->second.find("Sequential") != std::string::npos;
    const auto dims = entry.weight ? result_.tensors[*entry.weight].sizes.size() : 0;
    const bool leaf = !has_children_[entry.path];
    if (type != types_.end()) {
      entry.type = type->second;
      const auto is = [&](const char* word) { return entry.type.find(word) != std::string::npos; };
      entry.kind = is("Embedding") && dims == 2                ? ModuleKind::embedding
                   : is("Linear") && dims == 2                 ? ModuleKind::linear
                   : is("Norm") && dims == 1                   ? ModuleKind::norm
                   : leaf && dims == 0 && !others_[entry.path] ? ModuleKind::no_parameters
                                                               : ModuleKind::other;
    } else if (dims == 1 && leaf && !others_[entry.path]) {
      entry.kind = ModuleKind::norm;
      entry.type = "norm";
    } else if (dims == 2 && leaf && !others_[entry.path]) {
      entry.kind = is_embedding(entry) ? ModuleKind::embedding : ModuleKind::linear;
      entry.type = entry.kind == ModuleKind::embedding ? "Embedding" : "Linear";
    } else if (leaf && !entry.weight && !entry.bias && !others_[entry.path]) {
      entry.kind = ModuleKind::no_parameters;
      entry.type = "without parameters";
    }
    if (entry.kind == ModuleKind::other || entry.kind == ModuleKind::no_parameters)
      entry.weight = entry.bias = {};
  }

  static bool is_embedding(const DescribedModule& entry) {
    auto name = split(entry.path).second;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return std::tolower(letter); });
    const std::array<const char*, 5> parts{"emb", "tok", "wte", "wpe", "vocab"};
    return !entry.bias && std::any_of(parts.begin(), parts.end(),
                                      [&](const char* part) { return name.find(part) != std::string::npos; });
  }

  ModuleDescription result_;
  std::map<std::string, std::size_t> by_path_, by_name_;
  std::map<std::string, std::string> types_;
  std::map<std::string, bool> has_children_, others_;
  std::vector<std::pair<std::string, std::string>> ties_;
};

ordered_json parsed(const std::string& text) {
  try {
    return ordered_json::parse(text);
  } catch (const ordered_json::exception& error) {
    throw Error(fmt::format("model file: no JSON: {}", error.what()));
  }
}

// Layout of the format: 8 bytes, little-endian, the header's length; the header, JSON; the data.
std::string safetensors_header(std::ifstream& file) {
  std::array<unsigned char, 8> bytes{};
  file.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
  std::uint64_t length = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) length = length << 8 | bytes[i];
  if (!file || length > longest_header) throw Error("model file: no safetensors header");
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  if (!file) throw Error(fmt::format("model file: the safetensors header of {} bytes is cut off", length));
  return header;
}

}  // namespace

ModuleDescription describe_names(const std::string& json) { return Reader().run(parsed(json)); }

ModuleDescription describe_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot read the model file " + path);
  if (path.ends_with(".safetensors")) return describe_names(safetensors_header(file));
  std::ostringstream text;
  if (!(text << file.rdbuf())) throw Error("cannot read the model file " + path);
  return describe_names(text.str());
}

}  // namespace dtensor
