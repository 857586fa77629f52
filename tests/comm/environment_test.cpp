// Which rank a process is, from the variables of each launcher.
#include "comm/environment.h"

#include "placements/error.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace dtensor;
using namespace dtensor::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

const Variables address = {{"MASTER_ADDR", "host0"}, {"MASTER_PORT", "4321"}};

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

std::string refusal(const Variables& variables) {
  try {
    find_rank(variables);
  } catch (const MeshError& error) {
    return error.what();
  }
  return "no MeshError";
}

}  // namespace

TEST_CASE("environment: no launcher") {
  CHECK(!find_rank({}));
  CHECK(!find_rank(address));
  CHECK(!find_rank({{"RANK", ""}, {"HOME", "/"}}));
}

TEST_CASE("environment: each launcher's variables") {
  const auto torchrun =
      find_rank(address + Variables{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}});
  REQUIRE(torchrun);
  CHECK(torchrun->source == "torchrun");
  CHECK(torchrun->rank == 5);
  CHECK(torchrun->world_size == 8);
  CHECK(torchrun->local_rank == 1);
  CHECK(torchrun->master_address == "host0");
  CHECK(torchrun->master_port == 4321);
  CHECK(!torchrun->store_is_served);

  const auto open_mpi = find_rank(address + Variables{{"OMPI_COMM_WORLD_RANK", "1"},
                                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  REQUIRE(open_mpi);
  CHECK(open_mpi->source == "Open MPI");
  CHECK(open_mpi->rank == 1);
  CHECK(open_mpi->local_rank == 0);

  const auto pmi =
      find_rank(address + Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}});
  REQUIRE(pmi);
  CHECK(pmi->source == "PMI");
  CHECK(pmi->rank == 3);
  CHECK(pmi->local_rank == 1);

  const auto alone = find_rank({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  REQUIRE(alone);  // one rank needs no address
  CHECK(alone->world_size == 1);
}

TEST_CASE("environment: torchrun's agent may serve the store") {
  const auto found = find_rank(address + Variables{{"RANK", "0"},
                                                   {"WORLD_SIZE", "2"},
                                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                   {"TORCHELASTIC_RUN_ID", "job"},
                                                   {"TORCHELASTIC_RESTART_COUNT", "2"}});
  REQUIRE(found);
  CHECK(found->store_is_served);
  CHECK(found->run == "job/2/");
}

TEST_CASE("environment: SLURM counts in a step only") {
  const Variables allocation = {
      {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "5000"}, {"SLURM_JOB_NODELIST", "n[07-08]"}};
  CHECK(!find_rank(allocation));
  CHECK(!find_rank(allocation + Variables{{"SLURM_PROCID", "0"}}));  // sbatch's shell
  CHECK(!find_rank(allocation +
                   Variables{{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}}));  // interactive
  const Variables step =
      allocation + Variables{{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}};
  const auto found = find_rank(step);
  REQUIRE(found);
  CHECK(found->source == "SLURM");
  CHECK(found->rank == 3);
  CHECK(found->world_size == 8);
  CHECK(found->local_rank == 1);
  CHECK(found->master_address == "n07");
  CHECK(found->master_port == 61440 + 5000 % 4096);
  const auto smaller = find_rank(step + address + Variables{{"SLURM_STEP_NUM_TASKS", "4"}});
  REQUIRE(smaller);
  CHECK(smaller->world_size == 4);
  CHECK(smaller->master_address == "host0");
  const auto launched = find_rank({{"SLURM_NTASKS", "2"},
                                   {"SLURM_PROCID", "0"},
                                   {"SLURM_STEP_ID", "1"},
                                   {"SLURM_JOB_ID", "1"},
                                   {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}});
  REQUIRE(launched);
  CHECK(launched->master_address == "10.0.0.1");
}

TEST_CASE("environment: the first host of a node list") {
  CHECK(first_host("alpha") == "alpha");
  CHECK(first_host("alpha,beta[1-2]") == "alpha");
  CHECK(first_host("gpu[003-005,9],cpu1") == "gpu003");
  CHECK(first_host("gpu[7,9]") == "gpu7");
  CHECK(first_host("rack[1-2]-ib,other") == "rack1-ib");
  CHECK_THROWS_AS(first_host("gpu[1-2"), MeshError);
}

TEST_CASE("environment: sources that agree, that disagree, and nested launchers") {
  const Variables two = address + Variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  const Variables mpi_agrees = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const Variables mpi_differs = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  CHECK(find_rank(two + mpi_agrees)->source == "torchrun");
  CHECK_THAT(refusal(two + mpi_differs),
             ContainsSubstring("torchrun (rank 1 of 2)") && ContainsSubstring("Open MPI (rank 0 of 2)"));
  CHECK(find_rank(two + mpi_differs + Variables{{"DTENSOR_RUN", "1"}})->rank == 1);
  CHECK(find_rank(two + mpi_differs + Variables{{"TORCHELASTIC_RUN_ID", "x"}})->source == "torchrun");

  const Variables step = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}};
  CHECK_THAT(refusal(two + step), ContainsSubstring("torchrun") && ContainsSubstring("SLURM (rank 0 of 4)"));
  // mpirun in a SLURM job starts its daemons by a step of one task per node.
  CHECK(find_rank(address + mpi_agrees + step + Variables{{"SLURM_STEP_NUM_NODES", "4"}})->source ==
        "Open MPI");
}

TEST_CASE("environment: malformed variables are named") {
  const auto with = [](const std::string& rank, const std::string& size) {
    return refusal(address + Variables{{"RANK", rank}, {"WORLD_SIZE", size}});
  };
  CHECK_THAT(with("1x", "2"), ContainsSubstring("RANK='1x' is not a whole number"));
  CHECK_THAT(with("0", "2.0"), ContainsSubstring("WORLD_SIZE='2.0'"));
  CHECK_THAT(with("2", "2"), ContainsSubstring("RANK=2 is not below WORLD_SIZE=2"));
  CHECK_THAT(with("-1", "2"), ContainsSubstring("RANK=-1 is out of range"));
  CHECK_THAT(with("0", "0"), ContainsSubstring("WORLD_SIZE=0"));
  CHECK_THAT(with("0", "99999999999999999999"), ContainsSubstring("WORLD_SIZE"));
  CHECK_THAT(refusal({{"RANK", "0"}}), ContainsSubstring("WORLD_SIZE is not"));
  CHECK_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
             ContainsSubstring("MASTER_ADDR") && ContainsSubstring("MASTER_PORT"));
  CHECK_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
             ContainsSubstring("MASTER_PORT=70000 is out of range"));
  CHECK_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
             ContainsSubstring("MASTER_PORT"));
}
