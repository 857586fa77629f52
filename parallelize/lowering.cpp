#include "parallelize/lowering.h"

#include "dtensor/dtensor.h"
#include "parallelize/did_you_mean.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// The stock module types that styles know, by what their forward reads.
struct KnownModule {
  enum class Kind { linear, embedding, norm, no_parameters, other } kind = Kind::other;
  at::Tensor weight, bias;  // the typed members, which are what forward reads
};

KnownModule classify(torch::nn::Module& module) {
  using Kind = KnownModule::Kind;
  if (auto* linear = module.as<torch::nn::LinearImpl>()) return {Kind::linear, linear->weight, linear->bias};
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) return {Kind::embedding, embedding->weight, {}};
  if (auto* norm = module.as<torch::nn::LayerNormImpl>()) return {Kind::norm, norm->weight, norm->bias};
  if (module.parameters(true).empty()) return {Kind::no_parameters, {}, {}};
  // A norm of the user's own: vectors named weight and bias.
  at::Tensor weight, bias;
  bool vectors = true;
  for (const auto& parameter : module.named_parameters(false)) {
    vectors = vectors && parameter.value().dim() == 1;
    if (parameter.key() == "weight") weight = parameter.value();
    if (parameter.key() == "bias") bias = parameter.value();
  }
  if (vectors && weight.defined() && module.children().empty()) return {Kind::norm, weight, bias};
  return {};
}

const char* name_of(StyleKind kind) {
  switch (kind) {
    case StyleKind::colwise: return "colwise";
    case StyleKind::rowwise: return "rowwise";
    case StyleKind::sequence_parallel: return "sequence_parallel";
  }
  return "?";
}

class Lowering {
 public:
  Lowering(torch::nn::Module& module, const MeshLayout& mesh, const ParallelPlan& plan, const ApplyOptions& options)
      : module_(module), mesh_(mesh), plan_(plan), options_(options), tp_(mesh.find_dim(plan.tensor_parallel_dim)) {}

  LoweredPlan run() {
    collect();
    check_mesh();
    if (!plan_.rules.empty() && !tp_)
      fault("the rules speak of mesh dimension \"{}\", but the mesh {} has none of that name", plan_.tensor_parallel_dim,
            mesh_.to_string());
    else
      apply_rules();
    return std::move(result_);
  }

 private:
  template <typename... Arguments>
  void fault(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    result_.faults.push_back(fmt::format(text, std::forward<Arguments>(arguments)...));
  }

  // All parameters and buffers once, whole on every mesh dimension until a rule says otherwise.
  void collect() {
    const auto add = [&](const std::string& name, const at::Tensor& tensor, bool buffer) {
      if (!tensor.defined()) return;
      if (is_dtensor(tensor)) {
        if (result_.faults.empty())
          fault("\"{}\" is a DTensor already: the module was parallelised before, and a plan is applied once", name);
        return;
      }
      if (LoweredTensor* same = find(tensor)) {
        same->aliases.push_back(name);
        if (!same->tensor.is_same(tensor)) same->members.push_back(tensor);
        return;
      }
      LoweredTensor entry;
      entry.tensor = tensor;
      entry.name = name;
      entry.buffer = buffer;
      entry.placements.assign(static_cast<std::size_t>(mesh_.ndim()), Replicate());
      result_.tensors.push_back(std::move(entry));
    };
    for (const auto& parameter : module_.named_parameters(true)) add(parameter.key(), parameter.value(), false);
    for (const auto& buffer : module_.named_buffers(true)) add(buffer.key(), buffer.value(), true);
  }

  // Tied: the same tensor, or another handle on the same memory.
  LoweredTensor* find(const at::Tensor& tensor) {
    for (auto& entry : result_.tensors) {
      if (entry.tensor.is_same(tensor)) return &entry;
      if (tensor.numel() > 0 && entry.tensor.has_storage() && tensor.has_storage() &&
          entry.tensor.is_alias_of(tensor) && entry.tensor.data_ptr() == tensor.data_ptr() &&
          entry.tensor.sizes() == tensor.sizes())
        return &entry;
    }
    return nullptr;
  }

  void check_mesh() {
    if (plan_.mesh) {
      if (plan_.mesh->names != mesh_.names())
        fault("the plan's mesh has dimensions [{}], the mesh given has [{}]", fmt::join(plan_.mesh->names, ", "),
              fmt::join(mesh_.names(), ", "));
      else
        for (std::size_t i = 0; i < plan_.mesh->shape.size(); ++i)
          if (plan_.mesh->shape[i] != -1 && plan_.mesh->shape[i] != mesh_.shape()[i])
            fault("mesh dimension \"{}\" has size {} in the plan and {} in the mesh given", plan_.mesh->names[i],
                  plan_.mesh->shape[i], mesh_.shape()[i]);
    }
    if (plan_.data_parallel && !mesh_.find_dim(plan_.data_parallel->dim))
      fault("data_parallel speaks of mesh dimension \"{}\", but the mesh {} has none of that name",
            plan_.data_parallel->dim, mesh_.to_string());
  }

  void apply_rules() {
    std::vector<std::string> paths;
    std::map<std::string, std::size_t> taken;  // module path -> rule
    const auto modules = module_.named_modules("", false);
    for (const auto& item : modules) paths.push_back(item.key());
    for (std::size_t i = 0; i < plan_.rules.size(); ++i) {
      const PlanRule& rule = plan_.rules[i];
      bool matched = false;
      for (const auto& item : modules) {
        if (item.key().empty() || !matches(rule.match, item.key())) continue;
        matched = true;
        if (auto [place, fresh] = taken.emplace(item.key(), i); !fresh) {
          fault("module \"{}\" is matched by rule {} (\"{}\") and rule {} (\"{}\"): each module takes one", item.key(),
                place->second + 1, plan_.rules[place->second].match, i + 1, rule.match);
          continue;
        }
        apply(rule, i, item.key(), *item.value());
      }
      if (!matched)
        fault("rule {} (\"{}\") matches no module{}", i + 1, rule.match, did_you_mean(rule.match, paths));
    }
  }

  void apply(const PlanRule& rule, std::size_t index, const std::string& path, torch::nn::Module& module) {
    const auto known = classify(module);
    using Kind = KnownModule::Kind;
    const bool suits = rule.style.kind == StyleKind::sequence_parallel
                           ? known.kind == Kind::norm || known.kind == Kind::no_parameters
                           : known.kind == Kind::linear || known.kind == Kind::embedding;
    if (!suits) {
      fault("rule {} (\"{}\"): style {} does not suit module \"{}\" of type {} ({})", index + 1, rule.match,
            name_of(rule.style.kind), path, module.name(),
            rule.style.kind == StyleKind::sequence_parallel ? "it suits norms and modules without parameters"
                                                            : "it suits Linear and Embedding");
      return;
    }
    check_heads(rule, path, module);
    const int tp = *tp_;
    const auto on_tp = [tp](const Placement& placement) { return std::vector<WishedPlacement>{{tp, placement}}; };
    const auto output = [&](std::optional<Placement> standard) {
      const auto& wanted = rule.style.output ? rule.style.output : standard;
      return wanted ? on_tp(*wanted) : std::vector<WishedPlacement>{};
    };
    switch (rule.style.kind) {
      case StyleKind::colwise:
        if (known.kind == Kind::linear) {
          place(known.weight, Shard(0), rule, path, Wish{WishFamily::matmul, on_tp(Replicate()), output({}), true});
          place(known.bias, Shard(0), rule, path, {});
        } else {
          place(known.weight, Shard(1), rule, path, Wish{WishFamily::embedding, on_tp(Replicate()), output({}), false});
        }
        break;
      case StyleKind::rowwise:
        if (known.kind == Kind::linear) {
          place(known.weight, Shard(1), rule, path, Wish{WishFamily::matmul, on_tp(Shard(-1)), output(Replicate()), false});
          place(known.bias, Replicate(), rule, path, {});
        } else {
          place(known.weight, Shard(0), rule, path,
                Wish{WishFamily::embedding, on_tp(Replicate()), output(Replicate()), false});
        }
        break;
      case StyleKind::sequence_parallel:
        place(known.weight, Replicate(), rule, path,
              Wish{WishFamily::norm, on_tp(rule.style.input.value_or(Shard(rule.style.sequence_dim))), output({}), false});
        place(known.bias, Replicate(), rule, path, {});
        break;
    }
  }

  // Gives a typed member's tensor its placement and wish. A member rebound by assignment (b->weight = a->weight) is found
  // by its memory; the registered slot that nobody reads then stays Replicate and is reported.
  void place(const at::Tensor& tensor, const Placement& placement, const PlanRule& rule, const std::string& path,
             std::optional<Wish> wish) {
    if (!tensor.defined()) return;
    LoweredTensor* entry = find(tensor);
    if (!entry) {
      fault("module \"{}\": its weight is no registered parameter of the module tree", path);
      return;
    }
    const bool owner = entry->name.rfind(path + ".", 0) == 0 ||
                       std::any_of(entry->aliases.begin(), entry->aliases.end(),
                                   [&](const std::string& alias) { return alias.rfind(path + ".", 0) == 0; });
    if (!owner) {
      entry->aliases.push_back(path);
      result_.notes.push_back(fmt::format(
          "module \"{}\" reads \"{}\" (tied by assignment); its own registered parameter is read by nobody", path, entry->name));
    }
    if (!entry->tensor.is_same(tensor) &&
        std::none_of(entry->members.begin(), entry->members.end(), [&](const at::Tensor& m) { return m.is_same(tensor); }))
      entry->members.push_back(tensor);
    auto& place = entry->placements[static_cast<std::size_t>(*tp_)];
    if (!entry->rule.empty() && place != placement) {
      fault("tied parameter \"{}\" is placed {} by rule \"{}\" and {} by rule \"{}\" (module \"{}\"): it has one placement",
            entry->name, place.to_string(), entry->rule, placement.to_string(), rule.match, path);
      return;
    }
    place = placement;
    if (entry->rule.empty()) entry->rule = rule.match;
    if (wish) entry->wishes.push_back(std::move(*wish));
  }

  void check_heads(const PlanRule& rule, const std::string& path, torch::nn::Module& module) {
    if (rule.style.kind == StyleKind::sequence_parallel) return;
    const auto ranks = mesh_.size(*tp_);
    for (const auto& [pattern, heads] : options_.heads)
      if (matches(pattern, path) && heads % ranks != 0)
        fault("module \"{}\" ({}): {} attention heads do not divide by {} ranks along \"{}\", so some rank would hold part "
              "of a head. Choose a tensor-parallel size that divides {} (or a model whose head count is a multiple of {})",
              path, module.name(), heads, ranks, plan_.tensor_parallel_dim, heads, ranks);
  }

  torch::nn::Module& module_;
  const MeshLayout& mesh_;
  const ParallelPlan& plan_;
  const ApplyOptions& options_;
  std::optional<int> tp_;
  LoweredPlan result_;
};

}  // namespace

LoweredPlan lower(torch::nn::Module& module, const MeshLayout& mesh, const ParallelPlan& plan, const ApplyOptions& options) {
  return Lowering(module, mesh, plan, options).run();
}

}  // namespace dtensor::detail
