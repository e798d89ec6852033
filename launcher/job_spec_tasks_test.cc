// Several tasks a node: which of them are one agent.
#include "launcher/job_spec.h"

#include <optional>
#include <string>
#include <vector>

#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

// A step of four nodes; task 1 of 2 on the second one.
const Table kTasks = {{"SLURM_JOB_ID", "7"},           {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_NODES", "4"},   {"SLURM_STEP_NODELIST", "n[1-4]"},
                      {"SLURM_STEP_NUM_TASKS", "8"},   {"SLURM_NODEID", "1"},
                      {"SLURM_LOCALID", "1"},          {"SLURM_GTIDS", "2,3"},
                      {"SLURM_PROCID", "3"},           {"SLURMD_NODENAME", "n2"},
                      {"SLURM_JOB_NODELIST", "n[1-4]"}};

std::optional<LocalTask> TaskOf(const RunFlags& flags, const Table& table = kTasks) {
  auto spec = MakeJobSpec(flags, LookupIn(table), {"me", 16, 0}, "random");
  REQUIRE_OK(spec);
  return spec->local_task;
}

RunFlags Torchrun(const std::string& nodes, const std::string& workers) {
  RunFlags flags;
  flags.as_torchrun = true;
  flags.nnodes = nodes;
  flags.nproc_per_node = workers;
  return flags;
}

TEST_CASE("as torchrun, a task for each worker is one agent a node, where --nnodes says so") {
  CHECK(TaskOf(Torchrun("4", "2"))->rank == 1);
  CHECK_FALSE(TaskOf(Torchrun("8", "1")).has_value());  // an agent for each task
  CHECK_FALSE(TaskOf(Torchrun("4", "1")).has_value());  // two jobs side by side
  Table alone = kTasks;
  alone["SLURM_LOCALID"] = "0";
  alone["SLURM_GTIDS"] = "1";
  alone["SLURM_STEP_NUM_TASKS"] = "4";
  CHECK_FALSE(TaskOf(Torchrun("4", "2"), alone).has_value());
}

TEST_CASE("where --nnodes counts the tasks, each task is an agent, and its rank the node's") {
  RunFlags flags;
  flags.nnodes = "8";
  flags.nproc_per_node = "1";
  Table single = kTasks;  // a node with one task of such a step
  single["SLURM_LOCALID"] = "0";
  single["SLURM_GTIDS"] = "3";
  const bool has_place = GENERATE(true, false);
  if (has_place) flags.master_addr = "n1";
  for (const Table& table : {kTasks, single}) {
    auto spec = MakeJobSpec(flags, LookupIn(table), {"me", 16, 0}, "random");
    REQUIRE_OK(spec);
    CHECK_FALSE(spec->local_task.has_value());
    CHECK(spec->options.hello.node_rank == 3);
    CHECK(spec->options.hello.nodes_expected == 8);
    CHECK(spec->options.hello.local_world_size == 1);
    CHECK(spec->options.endpoint == (has_place ? "n1:29500" : "n1:29512"));
    CHECK(spec->meeting.scheduled_nodes == 4);
  }
  flags.nnodes = "4";
  CHECK(TaskOf(flags)->rank == 1);
  flags.nnodes = "8";
  flags.nproc_per_node.reset();  // a worker for each task: an agent a node
  flags.rdzv_id = "with other jobs";
  flags.rdzv_endpoint = "daemon";
  CHECK(TaskOf(flags)->rank == 1);
}

TEST_CASE(
    "--nproc-per-node that counts a node's tasks is an agent a node, whatever --nnodes counts") {
  // A job of an array of four, which has as many tasks as the array has jobs.
  Table array_task = kTasks;
  array_task["SLURM_STEP_NUM_NODES"] = "1";
  array_task["SLURM_STEP_NODELIST"] = array_task["SLURMD_NODENAME"] = "n2";
  array_task["SLURM_STEP_NUM_TASKS"] = "4";
  array_task["SLURM_GTIDS"] = "0,1,2,3";
  array_task["SLURM_NODEID"] = "0";
  array_task["SLURM_LOCALID"] = array_task["SLURM_PROCID"] = "3";
  array_task["SLURM_GPUS_ON_NODE"] = "4";
  RunFlags flags;
  flags.nnodes = "4";
  flags.rdzv_endpoint = "daemon";
  flags.rdzv_id = "array";
  for (const std::string workers : {"4", "gpu"}) {
    flags.nproc_per_node = workers;
    const auto task = TaskOf(flags, array_task);
    REQUIRE(task.has_value());
    CHECK(task->rank == 3);
    CHECK(task->count == 4);
  }
  flags.nproc_per_node = "1";
  CHECK_FALSE(TaskOf(flags, array_task).has_value());
  flags.nnodes = "8";
  flags.nproc_per_node = "2";  // eight nodes of four jobs like this one
  CHECK(TaskOf(flags).has_value());
}

TEST_CASE("GPUs that each task has for itself are refused unless each task is an agent") {
  Table bound = kTasks;
  bound["SLURM_GPUS_ON_NODE"] = "2";
  bound["CUDA_VISIBLE_DEVICES"] = "0";
  const auto make = [&](const RunFlags& flags) {
    return MakeJobSpec(flags, LookupIn(bound), {"me", 16, 0}, "random");
  };
  const std::string refusal = "Leave --gpus-per-task and --gpu-bind out";
  CHECK_STATUS(make({}), absl::StatusCode::kInvalidArgument, refusal);
  RunFlags flags;
  flags.nnodes = "4";
  flags.nproc_per_node = "2";
  CHECK_STATUS(make(flags), absl::StatusCode::kInvalidArgument, refusal);
  flags.nnodes = "8";
  flags.nproc_per_node = "1";
  auto spec = make(flags);
  REQUIRE_OK(spec);
  CHECK_FALSE(spec->local_task.has_value());
  CHECK(spec->options.hello.node_rank == 3);
  CHECK_OK(make(Torchrun("4", "2")));  // each task for itself: torchrun asks no scheduler
  CHECK_FALSE(make(Torchrun("4", "2"))->local_task.has_value());
  flags = RunFlags();
  flags.standalone = true;
  CHECK_OK(make(flags));
}

TEST_CASE("tasks that would meet elsewhere or under another id are another job") {
  RunFlags flags;
  if (GENERATE(true, false)) flags = Torchrun("4", "2");
  flags.master_addr = "n1";
  const auto ours = TaskOf(flags);
  REQUIRE(ours.has_value());
  CHECK(ours->group == "slurm-7.0-n2");
  RunFlags same = flags;
  same.node_rank = 3;
  CHECK(TaskOf(same)->job == ours->job);
  std::vector<RunFlags> others(4, flags);
  others[0].rdzv_id = "b";
  others[1].rdzv_endpoint = "n1:29501";
  others[2].master_addr = "n2";
  others[3].master_port = 29501;
  for (const RunFlags& other : others) {
    const auto task = TaskOf(other);
    REQUIRE(task.has_value());
    CHECK(task->group == ours->group);
    CHECK(task->job != ours->job);
  }
  CHECK(TaskOf({})->job == TaskOf({})->job);
}

}  // namespace
}  // namespace convene::launcher
