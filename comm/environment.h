// Which rank this process is, read from the variables that launchers set. A pure function of the variables.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace dtensor::detail {

using Variables = std::map<std::string, std::string>;

struct RankIdentity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string source;          // "torchrun", "Open MPI", "PMI", "SLURM"
  std::string master_address;  // where rank 0's store listens; empty when the world has one rank
  int master_port = 0;
  bool store_is_served =
      false;        // torchrun's agent already serves a store there: rank 0 connects like the others
  std::string run;  // tells restarts within one served store apart
};

// Nothing when no launcher's variables are there. Of several sources that agree the first of torchrun, Open MPI, PMI,
// SLURM is named. Of nested launchers the inner one counts: torchrun and dtensor-run mark their ranks, and a SLURM
// step of one task per node is where another launcher's daemons run.
// A SLURM allocation without a step (the shell of sbatch or salloc) is not a launcher.
// Errors: MeshError for a malformed or missing variable, a rank outside the world, sources that disagree, more than
// one rank without an address.
std::optional<RankIdentity> find_rank(const Variables& variables);

// The variables of this process.
Variables process_variables();

// The first host of a SLURM node list: "gpu[003-005,9],cpu1" -> "gpu003".
std::string first_host(const std::string& node_list);

}  // namespace dtensor::detail
