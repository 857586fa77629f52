#include "parallelize/broadcast_data.h"

#include "dtensor/dtensor.h"
#include "parallelize/did_you_mean.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstring>

namespace dtensor {
namespace {

using nlohmann::json;
using Data = std::map<std::string, at::Tensor>;

// What one rank asks for and has.
struct Manifest {
  std::vector<std::string> keys;
  std::string dtype;
  std::vector<std::vector<std::int64_t>> sizes;  // per key; coordinate 0 alone tells them
  std::vector<std::string> faults;               // of this rank's data
};

std::string to_text(const Manifest& manifest) {
  const json text{{"keys", manifest.keys},
                  {"dtype", manifest.dtype},
                  {"sizes", manifest.sizes},
                  {"faults", manifest.faults}};
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}
Manifest from_text(const std::string& text) {
  const auto read = json::parse(text);
  return {read.at("keys"), read.at("dtype"), read.at("sizes"), read.at("faults")};
}

std::vector<std::string> names_of(const Data& data) {
  std::vector<std::string> names;
  for (const auto& item : data) names.push_back(item.first);
  return names;
}

Manifest manifest_of(const std::vector<std::string>& keys, const Data& data, at::ScalarType dtype,
                     bool source) {
  Manifest manifest{keys, c10::toString(dtype), {}, {}};
  for (const auto& key : keys) {
    const auto found = data.find(key);
    if (found == data.end() || !found->second.defined()) {
      if (source || !data.empty())
        manifest.faults.push_back(fmt::format(
            "has no '{}', only [{}]{}", key, fmt::join(names_of(data), ", "),
            found == data.end() ? detail::did_you_mean(key, names_of(data)) : "; it is undefined"));
      continue;
    }
    const auto& tensor = found->second;
    if (is_dtensor(tensor))
      manifest.faults.push_back(
          fmt::format("has '{}' as a DTensor, which is on every rank already: pass plain tensors", key));
    else if (tensor.scalar_type() != dtype)
      manifest.faults.push_back(fmt::format("has '{}' of type {}, but {} is asked for", key,
                                            c10::toString(tensor.scalar_type()), c10::toString(dtype)));
    if (source) manifest.sizes.push_back(tensor.sizes().vec());
  }
  return manifest;
}

// Everybody's text, by coordinate.
std::vector<std::string> exchange(Group& group, const std::string& text, c10::Device device) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto longs = at::TensorOptions(device).dtype(at::kLong), bytes = longs.dtype(at::kByte);
  std::vector<at::Tensor> lengths, texts;
  for (std::size_t i = 0; i < ranks; ++i) lengths.push_back(at::empty({1}, longs));
  group.all_gather(lengths, at::full({1}, static_cast<std::int64_t>(text.size()), longs)).wait();
  for (const auto& length : lengths) texts.push_back(at::empty({length.item<std::int64_t>()}, bytes));
  auto mine = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  group.all_gather(texts, mine.to(device)).wait();
  std::vector<std::string> all;
  for (const auto& received : texts) {
    const auto host = received.to(at::kCPU).contiguous();
    all.emplace_back(static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(host.numel()));
  }
  return all;
}

// The same on every rank: all of them read the same manifests.
std::vector<std::string> faults_of(const std::vector<Manifest>& manifests, const Group& group) {
  std::vector<std::string> faults;
  const auto& first = manifests.front();
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    const auto& one = manifests[i];
    const auto add = [&](const std::string& text) {
      faults.push_back(fmt::format("rank {} {}", group.ranks()[i], text));
    };
    if (one.keys != first.keys)
      add(fmt::format("asks for the keys [{}], rank {} for [{}]", fmt::join(one.keys, ", "), group.ranks()[0],
                      fmt::join(first.keys, ", ")));
    if (one.dtype != first.dtype)
      add(fmt::format("asks for type {}, rank {} for {}", one.dtype, group.ranks()[0], first.dtype));
    for (const auto& fault : one.faults) add(fault);
  }
  return faults;
}

}  // namespace

std::map<std::string, at::Tensor> broadcast_data(const std::vector<std::string>& keys, const Data& data,
                                                 at::ScalarType dtype, const DeviceMesh& mesh,
                                                 const std::string& mesh_dim) {
  auto& group = mesh.group(mesh_dim);
  const bool source = mesh.coordinate(mesh_dim) == 0;
  const CollectiveReason reason("broadcast_data");
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Manifest> manifests;
  for (const auto& text : exchange(group, to_text(manifest_of(keys, data, dtype, source)), mesh.device()))
    manifests.push_back(from_text(text));
  const auto faults = faults_of(manifests, group);
  if (!faults.empty())
    throw DesyncError(fmt::format("broadcast_data along mesh dimension '{}': the ranks do not agree:\n  - {}",
                                  mesh_dim, fmt::join(faults, "\n  - ")));
  const auto& sizes = manifests.front().sizes;
  std::int64_t total = 0;
  for (const auto& one : sizes) total += c10::multiply_integers(one);
  const auto options = at::TensorOptions(mesh.device()).dtype(dtype);
  at::Tensor flat;
  if (source) {
    std::vector<at::Tensor> parts{at::empty({0}, options)};
    for (const auto& key : keys) parts.push_back(data.at(key).to(mesh.device()).flatten());
    flat = at::cat(parts);
  } else {
    flat = at::empty({total}, options);
  }
  auto bytes = flat.view(at::kByte);  // backends do not know every type
  group.broadcast(bytes, 0).wait();
  std::map<std::string, at::Tensor> result;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto count = c10::multiply_integers(sizes[i]);
    // Copies: parts of one tensor would count each other's changes.
    result[keys[i]] = flat.narrow(0, offset, count).view(sizes[i]).clone();
    offset += count;
  }
  return result;
}

}  // namespace dtensor
