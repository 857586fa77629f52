// The job on ranks, by a plan. Nothing else of this example knows of dtensor.
#pragma once

#include "setting.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace dtensor {
class World;
}

namespace train_gpt {

struct RankOptions {
  std::string backend = "auto";  // as dtensor::InitOptions has it
  std::chrono::seconds timeout{100};
};

// The setting of one rank. `announce` gets the report of what the plan did to the model, on the first rank.
std::unique_ptr<Setting> plan_setting(const std::string& plan_file, dtensor::World& world,
                                      std::function<void(const std::string&)> announce = {});

// Starts this process's rank, runs `job` in its setting, ends the rank. When the job throws, says so with the rank and
// tells the peers, so that nobody waits. A collective that takes longer than `timeout` fails. Returns the exit code.
int run_rank(const std::string& plan_file, const std::function<void(Setting&)>& job,
             std::function<void(const std::string&)> announce = {}, const RankOptions& options = {});

}  // namespace train_gpt
