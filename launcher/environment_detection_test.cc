#include "launcher/environment_detection.h"

#include <map>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Table = std::map<std::string, std::string>;

absl::StatusOr<DetectedJob> Detect(const Table& table) {
  return DetectJob([&](const std::string& name) -> std::optional<std::string> {
    const auto it = table.find(name);
    if (it == table.end()) return std::nullopt;
    return it->second;
  });
}

const Table kSlurm = {{"SLURM_JOB_ID", "4242"}, {"SLURM_STEP_ID", "0"},
                      {"SLURM_NNODES", "4"},    {"SLURM_NODEID", "2"},
                      {"SLURM_LOCALID", "0"},   {"SLURM_JOB_NODELIST", "node[003-006]"}};

TEST_CASE("without a scheduler nothing is said") {
  const auto job = Detect({});
  REQUIRE_OK(job);
  CHECK_FALSE(job->nodes.has_value());
  CHECK_FALSE(job->endpoint.has_value());
  CHECK(job->reasons.empty());
}

TEST_CASE("Slurm says id, nodes, rank and where to meet, each with a reason") {
  const auto job = Detect(kSlurm);
  REQUIRE_OK(job);
  CHECK(job->job_id == "4242.0");
  CHECK(job->nodes == 4);
  CHECK(job->node_rank == 2);
  CHECK(job->endpoint == "node003:29642");
  CHECK(job->reasons.size() == 4);
  CHECK_THAT(job->reasons[1], Catch::Contains("4 nodes, by SLURM_NNODES"));
}

TEST_CASE("a step that uses part of the allocation counts its own nodes") {
  Table table = kSlurm;
  table["SLURM_STEP_NUM_NODES"] = "2";
  table["SLURM_STEP_NODELIST"] = "node[005-006]";
  const auto job = Detect(table);
  REQUIRE_OK(job);
  CHECK(job->nodes == 2);
  CHECK(job->endpoint == "node005:29642");
}

TEST_CASE("several launchers on one node are refused with the option to use") {
  Table slurm = kSlurm;
  slurm["SLURM_LOCALID"] = "1";
  CHECK_STATUS(Detect(slurm), absl::StatusCode::kInvalidArgument, "--ntasks-per-node=1");
  CHECK_STATUS(Detect({{"OMPI_COMM_WORLD_RANK", "0"},
                       {"OMPI_COMM_WORLD_SIZE", "8"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
               absl::StatusCode::kInvalidArgument, "ppr:1:node");
}

TEST_CASE("mpirun inside a Slurm allocation: MPI counts, Slurm names the place") {
  Table table = kSlurm;
  table["OMPI_COMM_WORLD_RANK"] = "1";
  table["OMPI_COMM_WORLD_SIZE"] = "3";
  table["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  const auto job = Detect(table);
  REQUIRE_OK(job);
  CHECK(job->nodes == 3);
  CHECK(job->node_rank == 1);
  CHECK(job->endpoint == "node003:29642");
}

TEST_CASE("an indexed Kubernetes job gives the rank only") {
  const auto job = Detect({{"JOB_COMPLETION_INDEX", "5"}});
  REQUIRE_OK(job);
  CHECK(job->node_rank == 5);
  CHECK_FALSE(job->nodes.has_value());
}

TEST_CASE("a variable that is no count is named") {
  CHECK_STATUS(Detect({{"JOB_COMPLETION_INDEX", "five"}}), absl::StatusCode::kInvalidArgument,
               "JOB_COMPLETION_INDEX=five");
}

TEST_CASE("the first host of Slurm's short forms") {
  CHECK(FirstSlurmHost("login").value() == "login");
  CHECK(FirstSlurmHost("a,b").value() == "a");
  CHECK(FirstSlurmHost("node[003-007,9],login").value() == "node003");
  CHECK(FirstSlurmHost("node[9,11-12]").value() == "node9");
  CHECK(FirstSlurmHost("rack[2-3]n[01-04]-ib").value() == "rack2n01-ib");
  for (const char* bad : {"", ",a", "node[", "node[]", "node[01-04", "node]"}) {
    INFO(bad);
    CHECK_STATUS(FirstSlurmHost(bad), absl::StatusCode::kInvalidArgument, "node list");
  }
}

}  // namespace
}  // namespace convene::launcher
