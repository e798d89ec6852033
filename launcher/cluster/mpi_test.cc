#include "launcher/cluster/mpi.h"

#include "absl/strings/match.h"
#include "launcher/cluster/detect.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

absl::StatusOr<DetectedJob> Detect(const Table& table) {
  return DetectJob(LookupIn(table), {.host_name = "here", .parent = "orted"});
}

DetectedJob Good(const Table& table) {
  const auto job = Detect(table);
  REQUIRE_OK(job);
  return *job;
}

// As Open MPI 4.1.4 sets them in the process of `rank`, of 2 nodes.
Table OpenMpi(int rank, int local_rank, int local_size) {
  const std::string head = "2014052352.0;tcp://10.0.0.1,172.17.0.1:52517;tcp6://[fd00::2]:36901";
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(2 * local_size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"OMPI_MCA_orte_hnp_uri", head},
          {"OMPI_MCA_orte_local_daemon_uri",
           rank < local_size ? head : "2014052352.1;tcp://10.0.0.2:4711"},
          {"PMIX_NAMESPACE", "2014052353"}};
}

TEST_CASE("mpirun with one process a node tells nodes, rank, id and where to meet") {
  const DetectedJob job = Good(OpenMpi(1, 0, 1));
  CHECK(job.nodes == 2);
  CHECK(job.node_rank == 1);
  CHECK(job.job_id == "2014052353");
  CHECK(job.endpoint == "10.0.0.1:25353");
  CHECK(Good(OpenMpi(0, 0, 1)).endpoint == "10.0.0.1:25353");
  CHECK(job.local_task->count == 1);
  CHECK_FALSE(job.workers.has_value());
  CHECK(job.reasons.size() == 4);
}

TEST_CASE("mpirun with one process a slot makes them tasks of one agent, with a worker each") {
  const DetectedJob job = Good(OpenMpi(5, 1, 4));
  CHECK(job.nodes == 2);
  CHECK_FALSE(job.node_rank.has_value());
  CHECK(job.local_task->rank == 1);
  CHECK(job.local_task->count == 4);
  CHECK(job.local_task->group == "mpi-2014052353-here");
  CHECK(job.local_task->rank_of_all == 5);
  CHECK(job.local_task->count_of_all == 8);
  CHECK(job.workers == 4);
  CHECK_THAT(job.workers_reason, Catch::Contains("OMPI_COMM_WORLD_LOCAL_SIZE"));
}

TEST_CASE("one node needs no place to meet") {
  Table table = OpenMpi(0, 0, 2);
  table["OMPI_COMM_WORLD_SIZE"] = "2";
  const DetectedJob job = Good(table);
  CHECK(job.nodes == 1);
  CHECK_FALSE(job.endpoint.has_value());
}

TEST_CASE("rank 0 on another machine than mpirun says which flags to give") {
  Table table = OpenMpi(0, 0, 1);
  table["OMPI_MCA_orte_local_daemon_uri"] = "2014052352.1;tcp://10.0.0.2:4711";
  const DetectedJob job = Good(table);
  CHECK_FALSE(job.endpoint.has_value());
  CHECK_THAT(job.refusal, Catch::Contains("mpirun runs on 10.0.0.1"));
  CHECK_THAT(job.refusal, Catch::Contains("--rdzv-endpoint HOST:PORT"));
}

TEST_CASE("Open MPI 5 tells no address of mpirun, and no number for a name") {
  for (const std::string name : {"OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE"}) {
    Table table = OpenMpi(1, 0, 1);
    table[name] = name == "PMIX_NAMESPACE" ? "prterun-vm-812@1" : "";
    const DetectedJob job = Good(table);
    CHECK_FALSE(job.endpoint.has_value());
    CHECK(job.refusal.empty());
    CHECK(job.nodes == 2);
  }
}

TEST_CASE("mpirun inside a Slurm allocation counts, and Slurm adds what is still open") {
  Table table = OpenMpi(1, 0, 1);
  table.insert({{"SLURM_JOB_ID", "4242"}, {"SLURM_JOB_NODELIST", "node[003-006]"}});
  const DetectedJob job = Good(table);
  CHECK(job.nodes == 2);
  CHECK(job.node_rank == 1);
  CHECK(job.job_id == "2014052353");
  CHECK(absl::StartsWith(job.endpoint.value_or(""), "node003:"));
}

TEST_CASE("nodes with different counts of processes are refused") {
  Table table = OpenMpi(0, 0, 2);
  table["OMPI_COMM_WORLD_SIZE"] = "3";
  CHECK_STATUS(Detect(table), absl::StatusCode::kInvalidArgument, "ppr:1:node");
  table["OMPI_COMM_WORLD_SIZE"] = "three";
  CHECK_STATUS(Detect(table), absl::StatusCode::kInvalidArgument, "OMPI_COMM_WORLD_SIZE=three");
}

TEST_CASE("Hydra's processes, and not Slurm's pmi2") {
  const Table hydra = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const DetectedJob job = Good(hydra);
  CHECK(job.nodes == 2);
  CHECK(job.workers == 2);
  CHECK(job.local_task->rank == 1);
  CHECK_FALSE(Good({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}).nodes.has_value());
}

TEST_CASE("two runs under Hydra on one machine are told apart by its proxies") {
  const auto group = [](int proxy) {
    const Table hydra = {
        {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
    const auto job = DetectJob(LookupIn(hydra), {.host_name = "here", .hydra_proxy = proxy});
    REQUIRE_OK(job);
    CHECK_FALSE(job->job_id.has_value());  // another machine's proxy has another pid
    return job->local_task->group;
  };
  CHECK(group(71) == group(71));
  CHECK(group(71) != group(72));
  CHECK(group(0) == "mpi--here");
}

TEST_CASE("Flux") {
  const DetectedJob job = Good({{"FLUX_JOB_ID", "f23"},
                                {"FLUX_JOB_NNODES", "2"},
                                {"FLUX_JOB_SIZE", "2"},
                                {"FLUX_TASK_RANK", "1"},
                                {"FLUX_TASK_LOCAL_ID", "0"}});
  CHECK(job.nodes == 2);
  CHECK(job.node_rank == 1);
  CHECK(job.job_id == "f23");
  CHECK_STATUS(Detect({{"FLUX_JOB_ID", "f23"},
                       {"FLUX_JOB_NNODES", "2"},
                       {"FLUX_JOB_SIZE", "3"},
                       {"FLUX_TASK_RANK", "1"}}),
               absl::StatusCode::kInvalidArgument, "--tasks-per-node=1");
}

TEST_CASE("Cray's PALS tells the node's place") {
  CHECK(Good({{"PALS_RANKID", "9"}, {"PALS_NODEID", "3"}}).node_rank == 3);
}

}  // namespace
}  // namespace convene::launcher
