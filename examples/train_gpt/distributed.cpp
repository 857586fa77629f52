#include "distributed.h"

#include "gpt.h"

#include <dtensor/all.h>
#include <parallelize/all.h>

#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>
#include <utility>

namespace train_gpt {
namespace {

class PlanSetting final : public Setting {
 public:
  PlanSetting(const std::string& plan_file, dtensor::World& world,
              std::function<void(const std::string&)> announce)
      : world_(world),
        plan_(dtensor::ParallelPlan::from_file(plan_file)),
        mesh_(dtensor::make_mesh(plan_, world)),
        counter_(world),
        announce_(std::move(announce)) {}

  bool is_first_rank() const override { return world_.rank() == 0; }

  void prepare(torch::nn::Module& model) override {
    const dtensor::ApplyReport report =
        dtensor::parallelize_module(model, mesh_, plan_, {.heads = heads_of(model)});
    if (announce_ && is_first_rank()) announce_(report.to_string());
    counter_.reset();
  }

  at::Tensor distribute_batch(const at::Tensor& global) override {
    dtensor::Placements placements(mesh_.names().size(), dtensor::Replicate());
    if (plan_.data_parallel) {
      placements[mesh_.layout().dim(plan_.data_parallel->dim)] =
          dtensor::Shard(plan_.data_parallel->batch_dim);
    }
    return distribute(global, placements);
  }

  at::Tensor replicate(const at::Tensor& whole) override {
    return distribute(whole, dtensor::Placements(mesh_.names().size(), dtensor::Replicate()));
  }

  at::Tensor whole(const at::Tensor& tensor) override {
    return dtensor::is_dtensor(tensor) ? dtensor::as_dtensor(tensor).full_tensor() : tensor;
  }

  std::shared_ptr<void> postpone_gradients(torch::nn::Module& model) override {
    return std::make_shared<dtensor::NoGradientSync>(model);
  }

  void clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm) override {
    dtensor::clip_grad_norm_(parameters, max_norm);
  }

  BytesByDim take_bytes() override {
    BytesByDim bytes;
    for (const std::string& name : mesh_.names()) bytes[name] = 0;
    for (const auto& [key, tally] : counter_.tallies()) bytes[key.group] += tally.bytes;
    counter_.reset();
    return bytes;
  }

 private:
  // Every rank holds the same tensor, so nobody needs to send: each keeps its part.
  at::Tensor distribute(const at::Tensor& whole, dtensor::Placements placements) const {
    return dtensor::distribute_tensor(whole, mesh_, std::move(placements), {.source = std::nullopt});
  }

  // A rank must hold whole heads, which a plan cannot see: the model tells how many there are.
  static std::vector<std::pair<std::string, std::int64_t>> heads_of(const torch::nn::Module& model) {
    std::vector<std::pair<std::string, std::int64_t>> heads;
    for (const auto& module : model.named_modules()) {
      if (const auto* attention = module.value()->as<AttentionImpl>())
        heads.emplace_back(module.key() + ".{wq,wk,wv}",
                           attention->wq->options.out_features() / attention->head_dim);
    }
    return heads;
  }

  dtensor::World& world_;
  dtensor::ParallelPlan plan_;
  dtensor::DeviceMesh mesh_;
  dtensor::CollectiveCounter counter_;
  std::function<void(const std::string&)> announce_;
};

// What went wrong, without LibTorch's native backtrace.
std::string text_of(const std::exception& error) {
  const auto* native = dynamic_cast<const c10::Error*>(&error);
  return native ? native->what_without_backtrace() : error.what();
}

}  // namespace

std::unique_ptr<Setting> plan_setting(const std::string& plan_file, dtensor::World& world,
                                      std::function<void(const std::string&)> announce) {
  return std::make_unique<PlanSetting>(plan_file, world, std::move(announce));
}

int run_rank(const std::string& plan_file, const std::function<void(Setting&)>& job,
             std::function<void(const std::string&)> announce, const RankOptions& options) {
  dtensor::World* world = nullptr;
  try {
    dtensor::InitOptions init;
    init.backend = options.backend;
    init.timeout = options.timeout;
    world = &dtensor::init(init);
    job(*plan_setting(plan_file, *world, std::move(announce)));
    dtensor::shutdown();
    return 0;
  } catch (const std::exception& error) {
    const std::string text = text_of(error);
    // One write, so that the texts of several ranks do not mix.
    std::fputs(((world ? "rank " + std::to_string(world->rank()) : "train_gpt") + ": " + text + "\n").c_str(),
               stderr);
    if (world) world->abort(text);
    return 1;
  }
}

}  // namespace train_gpt
