// Nodes of a job that several allocations make up, and what schedulers and operators tell of them.
#include <string>

#include "launcher/job_spec.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

// A step of one node, of an array's second task.
const Table kArrayTask = {
    {"SLURM_JOB_ID", "9"},         {"SLURM_ARRAY_JOB_ID", "4"},   {"SLURM_ARRAY_TASK_ID", "2"},
    {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "n2"},
    {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NODEID", "0"},         {"SLURM_LOCALID", "0"},
    {"SLURM_GTIDS", "0"},          {"SLURMD_NODENAME", "n2"}};

absl::StatusOr<JobSpec> Make(const RunFlags& flags, const Table& table = kArrayTask) {
  return MakeJobSpec(flags, LookupIn(table), {"me", 16, 0}, "random");
}

JobSpec Good(const RunFlags& flags, const Table& table = kArrayTask) {
  auto spec = Make(flags, table);
  REQUIRE_OK(spec);
  return *std::move(spec);
}

RunFlags Nodes(const std::string& nodes) {
  RunFlags flags;
  flags.nnodes = nodes;
  flags.rdzv_endpoint = "daemon";
  return flags;
}

TEST_CASE("nodes of several jobs that meet at a daemon have one id, and no rank of their job's") {
  RunFlags flags = Nodes("4");
  flags.rdzv_id = "x";
  const JobSpec spec = Good(flags);
  CHECK(spec.options.hello.node_rank == -1);
  CHECK(spec.options.hello.job_id == "x");
  CHECK(spec.warnings.empty());
  CHECK_THAT(spec.reasons.back(), Catch::Contains("no node rank by the scheduler"));
  flags.node_rank = 2;
  CHECK(Good(flags).options.hello.node_rank == 2);
  Table two = kArrayTask;
  two["SLURM_STEP_NUM_NODES"] = two["SLURM_STEP_NUM_TASKS"] = "2";
  two["SLURM_STEP_NODELIST"] = "n[1-2]";
  flags.node_rank.reset();
  CHECK(Good(flags, two).options.hello.node_rank == -1);
  flags.nnodes = "2";
  CHECK(Good(flags, two).options.hello.node_rank == 0);
}

TEST_CASE("a run of more nodes than this command's cannot have the scheduler's id") {
  CHECK_STATUS(Make(Nodes("4")), absl::StatusCode::kInvalidArgument,
               "the scheduler started this command on 1, and the run's id 4_2.0 is of these alone");
  CHECK_STATUS(Make(Nodes("2:4")), absl::StatusCode::kInvalidArgument, "give --rdzv-id");
  RunFlags flags = Nodes("4");
  flags.rdzv_endpoint.reset();
  flags.master_addr = "daemon";
  CHECK_STATUS(Make(flags), absl::StatusCode::kInvalidArgument, "give --rdzv-id");
}

TEST_CASE("a run that one node may begin begins, with a word about other jobs' nodes") {
  const JobSpec spec = Good(Nodes("1:4"));
  CHECK(spec.options.hello.job_id == "4_2.0");
  REQUIRE(spec.warnings.size() == 1);
  CHECK_THAT(spec.warnings[0], Catch::Contains("id 4_2.0 is the scheduler's") &&
                                   Catch::Contains("give --rdzv-id, the same on all nodes"));
  CHECK(Good(Nodes("1")).warnings.empty());
  Table shell = {{"SLURM_JOB_ID", "9"}, {"SLURM_JOB_NUM_NODES", "1"}};
  CHECK(Good(Nodes("2"), shell).warnings.size() == 1);  // two commands in it would meet
  CHECK(Good(Nodes("1:4"), {}).warnings.empty());
}

TEST_CASE("two commands of a shell in one step or pod may be two nodes, and are warned") {
  RunFlags flags;
  flags.nnodes = "2";
  flags.node_rank = 1;
  flags.master_addr = "127.0.0.1";
  Table terminal = kArrayTask;
  terminal["SLURM_PTY_PORT"] = "39029";
  const Table pod = {{"JOBSET_COORDINATOR", "c"}, {"JOBSET_NAME", "x"}};
  const Machine task = {"me", 16, 0};
  Machine under_shell = task;
  under_shell.parent = "bash";
  Machine under_other = task;
  under_other.parent = "tmux: server";
  const auto check_warned = [&](const Table& table, const Machine& machine) {
    auto spec = MakeJobSpec(flags, LookupIn(table), machine, "random");
    REQUIRE_OK(spec);
    CHECK(spec->options.hello.node_rank == 1);
    CHECK_THAT(spec->warnings.back(), Catch::Contains("is the scheduler's"));
  };
  check_warned(kArrayTask, under_shell);
  check_warned(pod, under_shell);
  check_warned(terminal, under_shell);
  check_warned(terminal, under_other);
  for (const Table& table : {kArrayTask, pod}) {
    CHECK_STATUS(MakeJobSpec(flags, LookupIn(table), task, "random"),
                 absl::StatusCode::kInvalidArgument, "is of these alone");
  }
}

// As training-operator 1.9 sets them where a PyTorchJob has an elasticPolicy and a Master.
RunFlags ElasticWithMaster() {
  RunFlags flags = Nodes("1:4");
  flags.rdzv_backend = "c10d";
  flags.rdzv_endpoint = "llama-worker-0:23456";
  flags.master_addr = "llama-master-0";
  flags.master_port = 23456;
  flags.node_rank = 1;
  flags.from_environment = {"--master-addr=llama-master-0 (PET_MASTER_ADDR)",
                            "--master-port=23456 (PET_MASTER_PORT)"};
  return flags;
}

TEST_CASE("an operator's port of the master that is the endpoint's, too, is nobody's wish") {
  const Table pod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  RunFlags flags = ElasticWithMaster();
  const JobSpec spec = Good(flags, pod);
  CHECK(spec.options.endpoint == "llama-worker-0:23456");
  CHECK(spec.options.store_port == 0);
  CHECK_FALSE(spec.is_static);
  CHECK_THAT(spec.reasons.back(), Catch::Contains("any free port"));
  flags.rdzv_endpoint = "llama-worker-0:23457";
  CHECK(Good(flags, pod).options.store_port == 23456);
  const std::string refusal = "also the port of --rdzv-endpoint";
  flags = ElasticWithMaster();
  flags.from_environment = {"--master-port=23455 (PET_MASTER_PORT)"};  // a flag won over it
  CHECK_STATUS(Make(flags, pod), absl::StatusCode::kInvalidArgument, refusal);
  flags = ElasticWithMaster();
  flags.rdzv_backend = "static";
  CHECK_STATUS(Make(flags, pod), absl::StatusCode::kInvalidArgument, refusal);
}

}  // namespace
}  // namespace convene::launcher
