// The tables are what Slurm 22.05 was seen to set (shared/reference/clusters.md, 1.1 and 1.2).
#include "launcher/cluster/slurm.h"

#include "launcher/cluster/detect.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using testing::LookupIn;
using Table = testing::EnvironmentTable;

const ProcessFacts kByScript = {.host_name = "node003", .parent = "bash"};
const ProcessFacts kBySlurmd = {.host_name = "node003", .parent = "slurmstepd"};

absl::StatusOr<DetectedJob> Detect(const Table& table, const ProcessFacts& process = kBySlurmd) {
  return DetectJob(LookupIn(table), process);
}

DetectedJob Good(const Table& table, const ProcessFacts& process = kBySlurmd) {
  auto job = Detect(table, process);
  REQUIRE_OK(job);
  return *std::move(job);
}

void CheckRefused(const Table& table, const std::string& text) {
  CHECK_STATUS(Detect(table), absl::StatusCode::kInvalidArgument, text);
}

Table With(Table table, const Table& changes) {
  for (const auto& [name, value] : changes) table[name] = value;
  return table;
}

// A batch script on the first of four nodes with eight GPUs each.
const Table kBatch = {{"SLURM_JOB_ID", "4242"},
                      {"SLURM_JOBID", "4242"},
                      {"SLURM_JOB_NODELIST", "node[003-006]"},
                      {"SLURM_JOB_NUM_NODES", "4"},
                      {"SLURM_NNODES", "4"},
                      {"SLURM_NODEID", "0"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_GTIDS", "0"},
                      {"SLURMD_NODENAME", "node003"},
                      {"SLURM_TASKS_PER_NODE", "1(x4)"},
                      {"SLURM_JOB_CPUS_PER_NODE", "96(x4)"},
                      {"SLURM_CPUS_ON_NODE", "96"},
                      {"SLURM_GPUS_ON_NODE", "8"},
                      {"SLURM_JOB_GPUS", "0,1,2,3,4,5,6,7"},
                      {"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"}};

// The task of its third node, under `srun` with one task a node.
const Table kStep = With(kBatch, {{"SLURM_STEP_ID", "0"},
                                  {"SLURM_STEPID", "0"},
                                  {"SLURM_STEP_NODELIST", "node[003-006]"},
                                  {"SLURM_STEP_NUM_NODES", "4"},
                                  {"SLURM_STEP_NUM_TASKS", "4"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "1(x4)"},
                                  {"SLURM_NODEID", "2"},
                                  {"SLURM_PROCID", "2"},
                                  {"SLURM_GTIDS", "2"},
                                  {"SLURMD_NODENAME", "node005"},
                                  {"SLURM_STEP_GPUS", "0,1,2,3,4,5,6,7"}});

// Task 3 of 8 on that node, under `srun --ntasks-per-node=8`.
const Table kTaskPerGpu = With(kStep, {{"SLURM_STEP_NUM_TASKS", "32"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "8(x4)"},
                                       {"SLURM_NTASKS_PER_NODE", "8"},
                                       {"SLURM_PROCID", "19"},
                                       {"SLURM_LOCALID", "3"},
                                       {"SLURM_GTIDS", "16,17,18,19,20,21,22,23"}});

// salloc's shell on the login node.
const Table kShell = {
    {"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NODELIST", "node003"}, {"SLURM_JOB_NUM_NODES", "1"},
    {"SLURM_NNODES", "1"},  {"SLURM_JOB_NAME", "interactive"}, {"SLURM_TASKS_PER_NODE", "1"}};

TEST_CASE("a step says id, nodes, rank and where to meet, each with a reason") {
  const DetectedJob job = Good(kStep);
  CHECK(job.job_id == "4242.0");
  CHECK(job.nodes == 4);
  CHECK(job.node_rank == 2);
  CHECK(job.endpoint == "node003:30072");
  CHECK(job.slurm_host == "node003");
  CHECK_FALSE(job.is_slurm_host);
  CHECK(job.reasons.size() == 4);
  CHECK_THAT(job.reasons[1].text, Catch::Contains("4 nodes, by SLURM_STEP_NUM_NODES"));
  CHECK(job.warnings.empty());
  CHECK(job.signal_warning.empty());
  CHECK(job.refusal.empty());
  CHECK(Good(With(kStep, {{"SLURMD_NODENAME", "node003"}, {"SLURM_NODEID", "0"}})).is_slurm_host);
}

TEST_CASE("a step on a part of the allocation counts its own nodes") {
  const DetectedJob job = Good(With(kStep, {{"SLURM_STEP_NUM_NODES", "2"},
                                            {"SLURM_NNODES", "2"},
                                            {"SLURM_STEP_NODELIST", "node[005-006]"},
                                            {"SLURM_NODEID", "0"}}));
  CHECK(job.nodes == 2);
  CHECK(job.slurm_host == "node005");
  CHECK(job.is_slurm_host);
}

TEST_CASE("steps at the same time have their own ids and ports, and so have neighbouring jobs") {
  const DetectedJob first = Good(kStep);
  const DetectedJob second = Good(With(kStep, {{"SLURM_STEP_ID", "1"}}));
  const DetectedJob next_job = Good(With(kStep, {{"SLURM_JOB_ID", "4243"}}));
  CHECK(second.job_id == "4242.1");
  CHECK(second.endpoint == "node003:30073");
  CHECK(next_job.endpoint == "node003:30088");
  CHECK(second.local_task->group != first.local_task->group);
}

TEST_CASE("a requeued job is another run, though Slurm repeats its numbers") {
  const DetectedJob job = Good(With(kStep, {{"SLURM_RESTART_COUNT", "2"}}));
  CHECK(job.job_id == "4242.0-r2");
  CHECK_THAT(job.reasons[0].text, Catch::Contains("SLURM_RESTART_COUNT"));
  CHECK(job.local_task->group == "slurm-4242.0-r2-node005");
  CHECK(Good(With(kStep, {{"SLURM_RESTART_COUNT", "0"}})).job_id == "4242.0");
}

TEST_CASE(
    "an array's task has the name that squeue shows; its ports come from its own job number") {
  const Table array = With(
      kStep,
      {{"SLURM_ARRAY_JOB_ID", "4"}, {"SLURM_ARRAY_TASK_ID", "2"}, {"SLURM_ARRAY_TASK_COUNT", "3"}});
  CHECK(Good(array).job_id == "4_2.0");
  CHECK(Good(array).endpoint == "node003:30072");
}

TEST_CASE("a step over two components of a heterogeneous job is one step") {
  Table table = With(kStep, {{"SLURM_HET_SIZE", "2"},
                             {"SLURM_JOB_NUM_NODES_HET_GROUP_0", "1"},
                             {"SLURM_JOB_NUM_NODES_HET_GROUP_1", "1"},
                             {"SLURM_JOB_NODELIST", "n1"},
                             {"SLURM_JOB_NUM_NODES", "1"},
                             {"SLURM_NNODES", "2"},
                             {"SLURM_STEP_NUM_NODES", "1"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_STEP_NODELIST", "n[1-2]"},
                             {"SLURMD_NODENAME", "n2"},
                             {"SLURM_NODEID", "1"}});
  const DetectedJob both = Good(table);
  CHECK(both.nodes == 2);
  CHECK(both.node_rank == 1);
  CHECK(both.slurm_host == "n1");
  CHECK(both.reasons.size() == 4);
  table = With(table, {{"SLURM_STEP_NODELIST", "n1"}, {"SLURM_NODEID", "0"}});
  const DetectedJob one = Good(table);
  CHECK(one.nodes == 1);
  CHECK_THAT(one.reasons[3].text, Catch::Contains("1 of the 2 nodes of a heterogeneous job") &&
                                      Catch::Contains("--het-group=0,1"));
}

TEST_CASE("a command typed into a step's terminal cannot have the other nodes") {
  const Table pty = With(kStep, {{"SLURM_PTY_PORT", "40000"}, {"SLURM_NODEID", "0"}});
  const ProcessFacts typed = {.parent = "bash", .has_own_group = true};
  const DetectedJob job = Good(pty, typed);
  CHECK_THAT(job.refusal, Catch::Contains("srun --pty") && Catch::Contains("of its 4 nodes") &&
                              Catch::Contains("srun --overlap --nodes=4 --ntasks-per-node=1"));
  CHECK_FALSE(job.endpoint.has_value());
  // A script that srun --pty started runs on each node, and so does what its terminal's srun
  // starts.
  CHECK(Good(pty, {.parent = "bash"}).refusal.empty());
  CHECK(Good(pty, {.parent = "slurmstepd", .has_own_group = true}).refusal.empty());
  CHECK(Good(kStep, typed).refusal.empty());
  const Table one = With(pty, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "node005"}});
  CHECK(Good(one, typed).refusal.empty());
}

TEST_CASE("a plain line of a batch script on several nodes is told to use srun") {
  const DetectedJob job = Good(kBatch, kByScript);
  CHECK_FALSE(job.nodes.has_value());
  CHECK_FALSE(job.node_rank.has_value());
  CHECK_FALSE(job.endpoint.has_value());
  CHECK_THAT(job.refusal, Catch::Contains("plain line of a batch script") &&
                              Catch::Contains("4 nodes") &&
                              Catch::Contains("srun --ntasks-per-node=1 convene run"));
  // Slurm's own number of the batch script's step.
  CHECK(Good(With(kBatch, {{"SLURM_STEP_ID", "4294967291"}}), kByScript).refusal == job.refusal);
}

TEST_CASE("the components of a heterogeneous job count together in its batch script") {
  const DetectedJob job = Good(With(kBatch, {{"SLURM_HET_SIZE", "2"},
                                             {"SLURM_JOB_NUM_NODES", "1"},
                                             {"SLURM_NNODES", "1"},
                                             {"SLURM_JOB_NODELIST", "n1"},
                                             {"SLURM_JOB_NUM_NODES_HET_GROUP_0", "1"},
                                             {"SLURM_JOB_NUM_NODES_HET_GROUP_1", "3"}}));
  CHECK_THAT(job.refusal, Catch::Contains("4 nodes") && Catch::Contains("--het-group=0,1"));
}

TEST_CASE("a plain line on one node goes on, with a warning unless it replaces the shell") {
  const Table one = With(
      kBatch,
      {{"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NNODES", "1"}, {"SLURM_JOB_NODELIST", "node003"}});
  const DetectedJob job = Good(one, kByScript);
  CHECK(job.refusal.empty());
  CHECK(job.nodes == 1);
  CHECK(job.workers == 8);
  CHECK_THAT(job.signal_warning,
             Catch::Contains("srun convene run") && Catch::Contains("exec convene run"));
  CHECK(Good(one, kBySlurmd).signal_warning.empty());
}

TEST_CASE("a shell between srun and this command keeps the signals to itself") {
  CHECK_THAT(Good(kStep, kByScript).signal_warning, Catch::Contains("srun started a shell (bash)"));
  CHECK(Good(kStep, {.host_name = "node003", .parent = "starter"}).signal_warning.empty());
  // A person at a terminal, under srun --pty.
  CHECK(Good(With(kStep, {{"SLURM_PTY_PORT", "39029"}}), kByScript).signal_warning.empty());
}

TEST_CASE("salloc's shell runs one node, and tells when it is not that node") {
  CHECK(Good(kShell, kByScript).warnings.empty());
  CHECK(Good(kShell, kByScript).nodes == 1);
  CHECK(Good(kShell, {.host_name = "node003.cluster", .parent = "bash"}).warnings.empty());
  const DetectedJob away = Good(kShell, {.host_name = "login1", .parent = "bash"});
  REQUIRE(away.warnings.size() == 1);
  CHECK_THAT(away.warnings[0], Catch::Contains("login1") && Catch::Contains("node003"));
  CHECK(away.signal_warning.empty());
  const Table two = With(kShell, {{"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}});
  CHECK_THAT(Good(two).refusal, Catch::Contains("salloc's shell") && Catch::Contains("srun"));
  // With LaunchParameters=use_interactive_step the shell is a step of one node, on the first node.
  const Table interactive = With(two, {{"SLURM_STEP_ID", "4294967290"},
                                       {"SLURM_STEP_NUM_NODES", "1"},
                                       {"SLURM_STEP_NODELIST", "n1"},
                                       {"SLURM_NODEID", "0"},
                                       {"SLURMD_NODENAME", "n1"}});
  CHECK_THAT(Good(interactive).refusal, Catch::Contains("2 nodes"));
}

TEST_CASE("the workers of a node follow the GPUs that Slurm gave") {
  const DetectedJob job = Good(kStep);
  CHECK(job.gpus == 8);
  CHECK(job.workers == 8);
  CHECK_THAT(job.workers_reason, Catch::Contains("SLURM_GPUS_ON_NODE=8"));
  CHECK(job.cpus == 96);
  CHECK(job.local_task->count == 1);
}

TEST_CASE("where the counts of GPUs differ the smaller one wins, with the reason") {
  const DetectedJob sees_less = Good(With(kStep, {{"CUDA_VISIBLE_DEVICES", "0,1"}}));
  CHECK(sees_less.workers == 2);
  REQUIRE(sees_less.warnings.size() == 1);
  CHECK_THAT(sees_less.warnings[0], Catch::Contains("only the GPUs that it sees"));
  const DetectedJob sees_more = Good(With(kStep, {{"SLURM_GPUS_ON_NODE", "4"}}));
  CHECK(sees_more.workers == 4);
  REQUIRE(sees_more.warnings.size() == 1);
  CHECK_THAT(sees_more.warnings[0], Catch::Contains("belong to other jobs"));
}

TEST_CASE("one variable is enough to count GPUs; a node without any has one worker") {
  Table table = kStep;
  table.erase("SLURM_GPUS_ON_NODE");
  table["SLURM_STEP_GPUS"] = "4,5";
  table["CUDA_VISIBLE_DEVICES"] = "0,1";
  CHECK(Good(table).workers == 2);
  table.erase("SLURM_STEP_GPUS");
  CHECK(Good(table).workers == 2);
  table["CUDA_VISIBLE_DEVICES"] = "NoDevFiles";
  CHECK(Good(table).gpus == 0);
  CHECK_FALSE(Good(table).workers.has_value());
  table.erase("CUDA_VISIBLE_DEVICES");
  // SLURM_JOB_GPUS is still set: it is the batch script's, and tells nothing about this node.
  CHECK_FALSE(Good(table).gpus.has_value());
}

TEST_CASE("one task a GPU: each knows its place among the tasks of its node") {
  const DetectedJob job = Good(kTaskPerGpu);
  REQUIRE(job.local_task.has_value());
  CHECK(job.local_task->rank == 3);
  CHECK(job.local_task->count == 8);
  CHECK(job.local_task->group == "slurm-4242.0-node005");
  CHECK(job.node_rank == 2);
  CHECK(job.workers == 8);
  CHECK_THAT(job.workers_reason, Catch::Contains("one for each task"));
}

TEST_CASE("a node with one task of a step with more tasks than nodes has one worker too") {
  CHECK(Good(With(kStep, {{"SLURM_STEP_NUM_TASKS", "7"}})).workers == 1);
}

TEST_CASE("GPUs that srun hides from a node's other tasks are told, with what to write") {
  Table table = With(kTaskPerGpu, {{"CUDA_VISIBLE_DEVICES", "0"}, {"SLURM_STEP_GPUS", "3"}});
  CHECK_THAT(Good(table).hidden_gpus,
             Catch::Contains("Leave --gpus-per-task and --gpu-bind out") &&
                 Catch::Contains("srun --ntasks-per-node=1 --gpus-per-node=8 convene run"));
  // Enough for all workers: the tasks were only asked for with fewer GPUs.
  table["CUDA_VISIBLE_DEVICES"] = "0,1,2,3,4,5,6,7";
  CHECK(Good(table).workers == 8);
  CHECK(Good(table).hidden_gpus.empty());
  table["CUDA_VISIBLE_DEVICES"] = "";  // a run on CPUs
  CHECK(Good(table).gpus == 0);
}

TEST_CASE("the CPUs are those of the step on this node, and of its tasks where that is less") {
  CHECK(Good(With(kStep, {{"SLURM_CPUS_PER_TASK", "12"}})).cpus == 12);
  CHECK(Good(With(kTaskPerGpu, {{"SLURM_CPUS_PER_TASK", "6"}})).cpus == 48);
  CHECK(Good(With(kStep, {{"SLURM_CPUS_ON_NODE", "4"}, {"SLURM_CPUS_PER_TASK", "12"}})).cpus == 4);
}

TEST_CASE("variables that contradict each other are refused, and named") {
  CheckRefused(With(kStep, {{"SLURM_STEP_NUM_NODES", "3"}}),
               "SLURM_STEP_NUM_NODES=3 contradicts SLURM_STEP_NODELIST=node[003-006]");
  CheckRefused(With(kStep, {{"SLURM_NODEID", "4"}}), "SLURM_NODEID=4 contradicts");
  CheckRefused(With(kStep, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID=1 contradicts SLURM_GTIDS=2");
  CheckRefused(With(kStep, {{"SLURM_STEP_ID", "x"}}), "SLURM_STEP_ID=x");
  CheckRefused(With(kStep, {{"SLURM_JOB_ID", "4x"}}), "SLURM_JOB_ID=4x");
  CheckRefused(With(kStep, {{"SLURM_RESTART_COUNT", "-1"}}), "SLURM_RESTART_COUNT=-1");
  CheckRefused(With(kStep, {{"SLURM_GPUS_ON_NODE", "all"}}), "SLURM_GPUS_ON_NODE=all");
  CheckRefused(With(kStep, {{"SLURM_STEP_NODELIST", "node[003-006"}}),
               "SLURM_STEP_NODELIST=node[003-006: not a host list");
}

TEST_CASE(
    "mpirun inside an allocation: MPI counts, Slurm names the place of the whole allocation") {
  const Table mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "3"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  // On the node of the batch script; on the others, where Slurm started mpirun's daemons in a step
  // that does not have the first node.
  const Table daemons =
      With(kStep, {{"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NODELIST", "node[004-006]"}});
  for (const Table& table : {With(kBatch, mpi), With(daemons, mpi)}) {
    const DetectedJob job = Good(table, {.host_name = "node003", .parent = "orted"});
    CHECK(job.nodes == 3);
    CHECK(job.node_rank == 1);
    CHECK(job.endpoint == "node003:30072");
    CHECK(job.job_id == "4242");
    CHECK(job.refusal.empty());
    CHECK(job.signal_warning.empty());
  }
}

}  // namespace
}  // namespace convene::launcher
