#include "parallelize/save.h"

#include "dtensor/dtensor.h"
#include "parallelize/optimizer_state.h"
#include "placements/error.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <unordered_map>

namespace dtensor {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// The ranks that hold parts of one another's tensors; none for plain ones, where every rank is by itself.
class Holders {
 public:
  explicit Holders(const std::optional<DeviceMesh>& mesh) : mesh_(mesh) {}

  bool first() const { return !mesh_ || group().rank() == 0; }

  // Runs `work` on the first rank; where it throws, all ranks do.
  void on_first(const std::function<void()>& work) const {
    std::string problem;
    if (first()) {
      try {
        work();
      } catch (const c10::Error& error) {
        problem = error.what_without_backtrace();
      } catch (const std::exception& error) {
        problem = error.what();
      }
    }
    problem = from_first(problem);
    if (!problem.empty()) throw Error(problem);
  }

  // The first rank's text, on all ranks.
  std::string from_first(const std::string& text) const {
    if (!mesh_) return text;
    auto length = at::tensor({static_cast<std::int64_t>(text.size())}, at::kLong).to(mesh_->device());
    group().broadcast(length).wait();
    auto bytes = at::zeros({length.item<std::int64_t>()}, at::kByte);
    if (first() && !text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
    if (bytes.numel() == 0) return {};
    bytes = bytes.to(mesh_->device());
    group().broadcast(bytes).wait();
    const auto host = bytes.cpu();
    return {static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(host.numel())};
  }

 private:
  Group& group() const { return mesh_->whole_group(); }
  std::optional<DeviceMesh> mesh_;
};

std::optional<DeviceMesh> mesh_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return std::nullopt;
  return DTensor(tensor.detach()).mesh();
}

Holders holders_of(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters())
    if (const auto mesh = mesh_of(parameter)) return Holders(mesh);
  for (const auto& buffer : module.buffers())
    if (const auto mesh = mesh_of(buffer)) return Holders(mesh);
  return Holders(std::nullopt);
}

Holders holders_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (const auto mesh = mesh_of(parameter)) return Holders(mesh);
  return Holders(std::nullopt);
}

// Whole values of distributed tensors, one at a time in memory: on the rank that writes, the values wait in the pages
// of a file that has lost its name.
class Gatherer {
 public:
  Gatherer(const Holders& holders, std::string path) : holders_(holders), path_(std::move(path) + ".values") {}

  // An empty tensor on ranks that do not write. All ranks go on when the first one's disk is full; check() tells.
  at::Tensor operator()(const at::Tensor& tensor) {
    if (!is_dtensor(tensor)) return tensor;
    auto& known = gathered_[tensor.unsafeGetTensorImpl()];  // tied: once
    if (known.defined()) return known;
    const auto whole = DTensor(tensor.detach()).full_tensor();
    known = at::empty({0}, at::TensorOptions(whole.scalar_type()));
    if (holders_.first() && problem_.empty()) known = in_file(whole.cpu().contiguous());
    return known.set_requires_grad(tensor.requires_grad());
  }

  void check() const {
    if (!problem_.empty()) throw Error(problem_);
  }

 private:
  at::Tensor in_file(const at::Tensor& whole) {
    if (whole.numel() == 0) return whole;
    std::ofstream file(path_, std::ios::binary);
    file.write(static_cast<const char*>(whole.const_data_ptr()), static_cast<std::streamsize>(whole.nbytes()));
    file.close();
    if (!file) {
      problem_ = fmt::format("save: cannot write {} bytes to {}", whole.nbytes(), path_);
      return whole;
    }
    const auto values = at::from_file(path_, false, whole.numel(), at::TensorOptions(whole.scalar_type()));
    std::filesystem::remove(path_);
    return values.view(whole.sizes());
  }

  const Holders& holders_;
  std::string path_, problem_;
  std::unordered_map<const void*, at::Tensor> gathered_;
};

// As Module::save.
void write(const torch::nn::Module& module, OutputArchive& archive, Gatherer& gather) {
  for (const auto& parameter : module.named_parameters(false))
    archive.write(parameter.key(), gather(parameter.value()));
  for (const auto& buffer : module.named_buffers(false))
    archive.write(buffer.key(), gather(buffer.value()), true);
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    OutputArchive nested(archive.compilation_unit());
    write(*child.value(), nested, gather);
    archive.write(child.key(), nested);
  }
}

// At `path` when it is complete.
void put(OutputArchive& archive, const std::string& path, const Holders& holders, const Gatherer& gather) {
  holders.on_first([&] {
    gather.check();
    const auto unfinished = path + ".unfinished";
    archive.save_to(unfinished);
    std::filesystem::rename(unfinished, path);
  });
}

// The tensors of a module as the archive of Module::save nests them.
struct Slot {
  std::string name;  // path
  at::Tensor target;
  at::Tensor value;  // on the rank that reads
};

void collect(const torch::nn::Module& module, const std::string& prefix, InputArchive* archive,
             std::vector<Slot>& slots) {
  const auto add = [&](const std::string& key, const at::Tensor& target, bool buffer) {
    Slot slot{prefix + key, target, {}};
    if (archive && !archive->try_read(key, slot.value, buffer))
      throw Error(fmt::format("the file has no tensor \"{}\"", slot.name));
    if (archive && slot.value.sizes() != target.sizes())
      throw Error(fmt::format("\"{}\" has sizes [{}] in the file and [{}] in the module", slot.name,
                              fmt::join(slot.value.sizes(), ", "), fmt::join(target.sizes(), ", ")));
    slots.push_back(std::move(slot));
  };
  for (const auto& parameter : module.named_parameters(false)) add(parameter.key(), parameter.value(), false);
  for (const auto& buffer : module.named_buffers(false)) add(buffer.key(), buffer.value(), true);
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    InputArchive nested;
    if (archive && !archive->try_read(child.key(), nested))
      throw Error(fmt::format("the file has no module \"{}{}\"", prefix, child.key()));
    collect(*child.value(), prefix + child.key() + ".", archive ? &nested : nullptr, slots);
  }
}

// The first rank's values into a tensor whose placements stay.
void receive(at::Tensor& target, const at::Tensor& value) {
  if (!is_dtensor(target)) {
    if (value.defined()) target.copy_(value);
    return;
  }
  const DTensor placed(target.detach());
  const auto options = at::TensorOptions(target.scalar_type()).device(placed.mesh().device());
  const auto whole = value.defined() ? value.to(options) : at::empty(target.sizes(), options);
  target.copy_(distribute_tensor(whole, placed.mesh(), placed.placements()));
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} {}", static_cast<int>(tensor.scalar_type()), fmt::join(tensor.sizes(), " "));
}

// A tensor with the dtype and sizes that `described` told.
at::Tensor like(const std::string& description) {
  std::istringstream words(description);
  int dtype = 0;
  words >> dtype;
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 0; words >> size;) sizes.push_back(size);
  return at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(dtype)));
}

}  // namespace

void save(const torch::nn::Module& module, const std::string& path) {
  const at::NoGradGuard no_grad;
  const auto holders = holders_of(module);
  Gatherer gather(holders, path);
  OutputArchive archive;
  write(module, archive, gather);
  put(archive, path, holders, gather);
}

void save(torch::optim::Optimizer& optimizer, const std::string& path) {
  const at::NoGradGuard no_grad;
  const auto holders = holders_of(optimizer);
  Gatherer gather(holders, path);
  std::vector<at::Tensor> own;
  detail::visit_optimizer_state(optimizer, [&](const at::Tensor&, at::Tensor& state) {
    own.push_back(state);
    state = gather(state);
  });
  OutputArchive archive;
  optimizer.save(archive);
  std::size_t next = 0;
  detail::visit_optimizer_state(optimizer, [&](const at::Tensor&, at::Tensor& state) { state = own[next++]; });
  put(archive, path, holders, gather);
}

void load(torch::nn::Module& module, const std::string& path) {
  const at::NoGradGuard no_grad;
  const auto holders = holders_of(module);
  std::vector<Slot> slots;
  holders.on_first([&] {
    InputArchive archive;
    archive.load_from(path, at::kCPU);
    collect(module, "", &archive, slots);
  });
  if (!holders.first()) collect(module, "", nullptr, slots);
  for (auto& slot : slots) {
    receive(slot.target, slot.value);
    slot.value = at::Tensor();
  }
}

// The first rank sends options and counters as an archive whose state tensors are empty, then the tensors.
void load(torch::optim::Optimizer& optimizer, const std::string& path) {
  const at::NoGradGuard no_grad;
  const auto holders = holders_of(optimizer);
  std::vector<at::Tensor> values;
  std::string skeleton, descriptions;
  holders.on_first([&] {
    InputArchive archive;
    archive.load_from(path, at::kCPU);
    optimizer.load(archive);
    detail::visit_optimizer_state(optimizer, [&](const at::Tensor&, at::Tensor& state) {
      descriptions += described(state) + "\n";
      values.push_back(state);
      state = at::empty({0}, state.options());
    });
    OutputArchive empty;
    optimizer.save(empty);
    std::ostringstream text;
    empty.save_to(text);
    skeleton = text.str();
  });
  skeleton = holders.from_first(skeleton);
  descriptions = holders.from_first(descriptions);
  if (!holders.first()) {
    InputArchive archive;
    archive.load_from(skeleton.data(), skeleton.size(), at::kCPU);
    optimizer.load(archive);
  }
  std::istringstream lines(descriptions);
  std::size_t next = 0;
  detail::visit_optimizer_state(optimizer, [&](const at::Tensor&, at::Tensor& state) {
    std::string line;
    std::getline(lines, line);
    state = holders.first() ? std::move(values[next++]) : like(line);
  });
  distribute_optimizer_state(optimizer);
}

}  // namespace dtensor
