#include "comm/environment.h"

#include "placements/error.h"

#include <charconv>
#include <cstdint>
#include <vector>

extern "C" char** environ;  // NOLINT: POSIX declares it nowhere

namespace dtensor::detail {

namespace {

struct Source {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
};

constexpr Source torchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Source open_mpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Source pmi{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"};
constexpr Source slurm{"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};

const std::string* find(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() || found->second.empty() ? nullptr : &found->second;
}

std::int64_t number(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    throw MeshError("environment: " + name + "='" + text + "' is not a whole number");
  }
  return value;
}

int small_number(const std::string& name, const std::string& text, std::int64_t lowest,
                 std::int64_t highest) {
  const auto value = number(name, text);
  if (value < lowest || value > highest) {
    throw MeshError("environment: " + name + "=" + text + " is out of range (" + std::to_string(lowest) +
                    " to " + std::to_string(highest) + ")");
  }
  return static_cast<int>(value);
}

std::optional<RankIdentity> read(const Variables& variables, const Source& source) {
  const auto* rank = find(variables, source.rank);
  const auto* size = find(variables, source.size);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    throw MeshError(std::string("environment: ") + (rank ? source.rank : source.size) + " is set (" +
                    source.name + ") but " + (rank ? source.size : source.rank) +
                    " is not; set both or neither");
  }
  RankIdentity identity;
  identity.source = source.name;
  identity.world_size = small_number(source.size, *size, 1, 1 << 24);
  identity.rank = small_number(source.rank, *rank, 0, 1 << 24);
  if (identity.rank >= identity.world_size) {
    throw MeshError(std::string("environment: ") + source.rank + "=" + *rank + " is not below " +
                    source.size + "=" + *size);
  }
  const auto* local = find(variables, source.local_rank);
  identity.local_rank =
      local ? small_number(source.local_rank, *local, 0, identity.world_size - 1) : identity.rank;
  return identity;
}

// A step counts, an allocation does not. Batch and interactive shells are steps with numbers from 0xfffffff0 on.
bool is_in_slurm_step(const Variables& variables) {
  const auto* step = find(variables, "SLURM_STEP_ID");
  if (!step || !find(variables, "SLURM_PROCID")) return false;
  std::int64_t value = 0;
  const auto* end = step->data() + step->size();
  const auto [stop, error] = std::from_chars(step->data(), end, value);
  return error == std::errc() && stop == end && value < 0xfffffff0LL;
}

std::optional<RankIdentity> read_slurm(const Variables& variables) {
  if (!is_in_slurm_step(variables)) return std::nullopt;
  Variables of_step = variables;  // the step's own number of tasks is right where the allocation's differs
  if (const auto* tasks = find(variables, "SLURM_STEP_NUM_TASKS")) of_step["SLURM_NTASKS"] = *tasks;
  return read(of_step, slurm);
}

bool is_one_task_per_node(const Variables& variables, const RankIdentity& step) {
  const auto* nodes = find(variables, "SLURM_STEP_NUM_NODES");
  if (!nodes) nodes = find(variables, "SLURM_NNODES");
  return nodes && *nodes == std::to_string(step.world_size);
}

std::string name_source(const RankIdentity& identity) {
  return identity.source + " (rank " + std::to_string(identity.rank) + " of " +
         std::to_string(identity.world_size) + ")";
}

void find_address(const Variables& variables, RankIdentity& identity) {
  if (const auto* address = find(variables, "MASTER_ADDR")) identity.master_address = *address;
  if (const auto* port = find(variables, "MASTER_PORT")) {
    identity.master_port = small_number("MASTER_PORT", *port, 1, 65535);
  }
  if (identity.source == "SLURM") {
    // Rank 0 is on the step's first host; the launching host may be a login node and comes last.
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"}) {
      const auto* value = find(variables, name);
      if (value && identity.master_address.empty()) identity.master_address = first_host(*value);
    }
    const auto* job = find(variables, "SLURM_JOB_ID");
    if (identity.master_port == 0 &&
        job) {  // above the ports that systems hand out, equal on all ranks of the job
      identity.master_port = static_cast<int>(61440 + number("SLURM_JOB_ID", *job) % 4096);
    }
  }
  if (identity.world_size > 1 && (identity.master_address.empty() || identity.master_port == 0)) {
    throw MeshError("environment: " + name_source(identity) + " needs " +
                    (identity.master_address.empty() ? "MASTER_ADDR, the host of rank 0" : "") +
                    (identity.master_address.empty() && identity.master_port == 0 ? ", and " : "") +
                    (identity.master_port == 0 ? "MASTER_PORT, a free port there" : "") +
                    "; set them to the same values on all ranks");
  }
  const auto* served = find(variables, "TORCHELASTIC_USE_AGENT_STORE");
  if (identity.source == "torchrun" && served && *served == "True") {
    identity.store_is_served = true;
    for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
      if (const auto* value = find(variables, name)) identity.run += *value + "/";
    }
  }
}

}  // namespace

std::string first_host(const std::string& node_list) {
  const auto end = node_list.find_first_of(",[");
  std::string host = node_list.substr(0, end);
  if (end == std::string::npos || node_list[end] == ',') return host;
  const auto close = node_list.find(']', end);
  if (close == std::string::npos)
    throw MeshError("environment: node list '" + node_list + "' has no closing ']'");
  const auto range_end = node_list.find_first_of(",-]", end + 1);
  host += node_list.substr(end + 1, range_end - end - 1);
  const auto rest_end = node_list.find(',', close);  // what follows the brackets belongs to the name
  return host + node_list.substr(close + 1, rest_end == std::string::npos ? rest_end : rest_end - close - 1);
}

std::optional<RankIdentity> find_rank(const Variables& variables) {
  std::vector<RankIdentity> sources;
  for (const auto& source : {torchrun, open_mpi, pmi}) {
    if (auto identity = read(variables, source)) sources.push_back(*std::move(identity));
  }
  const bool marked = find(variables, "TORCHELASTIC_RUN_ID") || find(variables, "DTENSOR_RUN");
  if (marked && !sources.empty() && sources.front().source == "torchrun") {
    sources.resize(1);
  } else if (auto step = read_slurm(variables)) {
    if (sources.empty() || !is_one_task_per_node(variables, *step)) sources.push_back(*std::move(step));
  }
  if (sources.empty()) return std::nullopt;
  RankIdentity& first = sources.front();
  for (const auto& other : sources) {
    if (other.rank != first.rank || other.world_size != first.world_size) {
      throw MeshError("environment: two launchers disagree: " + name_source(first) + " and " +
                      name_source(other) +
                      "; unset the variables of the one that did not start this process");
    }
  }
  find_address(variables, first);
  return first;
}

Variables process_variables() {
  Variables variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

}  // namespace dtensor::detail
