#include "launcher/cluster/slurm.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/cluster/host_list.h"
#include "launcher/cluster/slurm_devices.h"
#include "launcher/flags.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// Jobs that share their first node, and the steps of one job, each meet at a port of their own. The
// ports are below the kernel's ephemeral ones (32768).
constexpr int kPortFirst = kDefaultRendezvousPort;
constexpr int kPortSpan = 3200;
constexpr int kPortsPerJob = 16;

// Slurm's own steps have numbers from here on; among them the batch script, which most versions
// give no number, and the shell of salloc (LaunchParameters=use_interactive_step).
constexpr uint32_t kOwnSteps = 0xfffffff0;
constexpr uint32_t kBatchStep = 0xfffffffb;

constexpr int kMostComponents = 1000;  // of a heterogeneous job; Slurm allows 128

struct Place {
  enum class Kind { kBatchScript, kShell, kStep };
  Kind kind = Kind::kShell;
  uint32_t step = 0;  // of a step
};

absl::StatusOr<Place> PlaceIn(const EnvironmentLookup& environment) {
  Place place;
  const auto step = environment("SLURM_STEP_ID");
  if (step.has_value() && !absl::SimpleAtoi(*step, &place.step)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SLURM_STEP_ID=", *step, " is no number; unset it or start with --standalone"));
  }
  // A batch script has a node's variables, and looks like rank 0 of a step.
  const bool is_batch =
      step.has_value() ? place.step == kBatchStep : environment("SLURM_NODEID").has_value();
  const bool is_step = step.has_value() && place.step < kOwnSteps;
  if (is_batch) place.kind = Place::Kind::kBatchScript;
  if (is_step) place.kind = Place::Kind::kStep;
  return place;
}

// The name that squeue and sacct show, and the number of restarts: a job that was requeued has the
// same job and step numbers again.
absl::Status DetectId(const EnvironmentLookup& environment, int job_number, const Place& place,
                      DetectedJob* job) {
  std::string id = absl::StrCat(job_number);
  std::vector<std::string> names = {"SLURM_JOB_ID"};
  const auto array = environment("SLURM_ARRAY_JOB_ID");
  const auto task = environment("SLURM_ARRAY_TASK_ID");
  if (array.has_value() && task.has_value()) {
    id = absl::StrCat(*array, "_", *task);
    names = {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"};
  }
  if (place.kind == Place::Kind::kStep) {
    absl::StrAppend(&id, ".", place.step);
    names.push_back("SLURM_STEP_ID");
  }
  CONVENE_ASSIGN_OR_RETURN(const auto restarts, CountOf(environment, "SLURM_RESTART_COUNT"));
  if (restarts.value_or(0) > 0) {
    absl::StrAppend(&id, "-r", *restarts);
    names.push_back("SLURM_RESTART_COUNT");
  }
  Choose(&job->job_id, id, absl::StrCat("job id ", id, ", by ", absl::StrJoin(names, ", ")), job);
  return absl::OkStatus();
}

// How many components the heterogeneous job has; 1: the job is none.
absl::StatusOr<int> Components(const EnvironmentLookup& environment) {
  CONVENE_ASSIGN_OR_RETURN(const auto size, CountOf(environment, "SLURM_HET_SIZE"));
  return std::clamp(size.value_or(1), 1, kMostComponents);
}

// The allocation's. In a heterogeneous job the plain variables are those of component 0 alone.
absl::StatusOr<std::optional<int>> AllocatedNodes(const EnvironmentLookup& environment) {
  const bool has_job = environment("SLURM_JOB_NUM_NODES").has_value();
  const std::string plain = has_job ? "SLURM_JOB_NUM_NODES" : "SLURM_NNODES";
  CONVENE_ASSIGN_OR_RETURN(const int components, Components(environment));
  int sum = 0;
  for (int i = 0; i < components && components > 1; ++i) {
    const std::string name = absl::StrCat("SLURM_JOB_NUM_NODES_HET_GROUP_", i);
    CONVENE_ASSIGN_OR_RETURN(const auto nodes, CountOf(environment, name));
    if (!nodes.has_value()) return CountOf(environment, plain);
    sum += *nodes;
  }
  if (components > 1) return std::optional<int>(sum);
  return CountOf(environment, plain);
}

// "0,1" of two components, for --het-group.
std::string ComponentList(int components) {
  std::vector<int> numbers(components);
  for (int i = 0; i < components; ++i) numbers[i] = i;
  return absl::StrJoin(numbers, ",");
}

absl::Status Contradiction(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      what,
      ": was one of them set by hand, or inherited from another job? Start the command by "
      "srun, which sets both, or give --standalone"));
}

// The nodes of the step, this node's place among them, and its tasks.
absl::Status DetectStep(const EnvironmentLookup& environment, const std::vector<std::string>& hosts,
                        DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const int components, Components(environment));
  const bool has_step = environment("SLURM_STEP_NUM_NODES").has_value();
  const std::string name = has_step ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  CONVENE_ASSIGN_OR_RETURN(std::optional<int> nodes, CountOf(environment, name));
  std::string source = name;
  const auto list = environment("SLURM_STEP_NODELIST");
  if (list.has_value()) {
    const int listed = static_cast<int>(std::set<std::string>(hosts.begin(), hosts.end()).size());
    if (nodes.value_or(listed) != listed && components == 1) {
      return Contradiction(absl::StrCat(name, "=", *nodes, " contradicts SLURM_STEP_NODELIST=",
                                        *list, ", which names ", listed, " node(s)"));
    }
    // A step over several components has one list, and counts of each component.
    if (nodes.value_or(0) != listed) source = "SLURM_STEP_NODELIST";
    nodes = listed;
  }
  if (nodes.has_value()) {
    Choose(&job->nodes, *nodes, absl::StrCat(*nodes, " nodes, by ", source), job);
  }
  CONVENE_ASSIGN_OR_RETURN(const auto node_id, CountOf(environment, "SLURM_NODEID"));
  if (node_id.has_value()) {
    if (nodes.has_value() && *node_id >= *nodes) {
      return Contradiction(absl::StrCat("SLURM_NODEID=", *node_id, " contradicts ", source,
                                        ", which tells of ", *nodes, " node(s), counted from 0"));
    }
    Choose(&job->node_rank, *node_id, absl::StrCat("node rank ", *node_id, ", by SLURM_NODEID"),
           job);
  }
  CONVENE_ASSIGN_OR_RETURN(const auto allocated, AllocatedNodes(environment));
  if (components > 1 && nodes.value_or(0) < allocated.value_or(0)) {
    job->reasons.push_back(
        {Fact::kOther, absl::StrCat("this step has ", nodes.value_or(0), " of the ", *allocated,
                                    " nodes of a heterogeneous job: `srun --het-group=",
                                    ComponentList(components), "` makes one step of all")});
  }
  return DetectSlurmTasks(environment, job);
}

// A command that srun did not start: it runs once, however many nodes there are.
absl::Status DetectOutsideOfSteps(const EnvironmentLookup& environment, const ProcessFacts& process,
                                  const Place& place, const std::vector<std::string>& hosts,
                                  DetectedJob* job) {
  const bool is_batch = place.kind == Place::Kind::kBatchScript;
  CONVENE_ASSIGN_OR_RETURN(const auto nodes, AllocatedNodes(environment));
  if (!nodes.has_value()) return absl::OkStatus();
  if (*nodes == 1) {
    Choose(&job->nodes, 1, "1 node, by the size of Slurm's allocation", job);
    if (!is_batch && hosts.size() == 1 && !process.host_name.empty() &&
        process.host_name.substr(0, process.host_name.find('.')) !=
            hosts.front().substr(0, hosts.front().find('.'))) {
      job->warnings.push_back(
          absl::StrCat("this is salloc's shell on ", process.host_name,
                       ", and the node of the allocation is ", hosts.front(),
                       ": the workers start here and not there; `srun convene run ...` starts "
                       "them on the node"));
    }
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(const int components, Components(environment));
  const std::string group =
      components > 1 ? absl::StrCat("--het-group=", ComponentList(components), " ") : "";
  job->refusal = absl::StrCat(
      is_batch ? "this command is a plain line of a batch script"
               : "this command is in salloc's shell",
      " (there is no SLURM_STEP_ID), so it runs on one node only, but the job has ", *nodes,
      " nodes, and nothing would run on the others. Write `srun ", group,
      "--ntasks-per-node=1 convene run ...`: srun starts the command on each node. To use this one "
      "node alone, add --standalone");
  return absl::OkStatus();
}

// srun --pty gives the terminal to the first task alone. The other tasks' shells have read an end
// of input and are gone. A script's command is in the group of its shell, and runs on each node.
std::string PtyRefusal(const EnvironmentLookup& environment, const ProcessFacts& process,
                       int nodes) {
  const bool is_typed =
      environment("SLURM_PTY_PORT").has_value() && IsShell(process.parent) && process.has_own_group;
  if (!is_typed || nodes == 1) return "";
  return absl::StrCat(
      "this command is in the shell of a step with a terminal (srun --pty), which has one on the "
      "first of its ",
      nodes,
      " nodes alone, so nothing would run on the others. Write `srun --overlap --nodes=", nodes,
      " --ntasks-per-node=1 convene run ...`: srun starts the command on each node. To use this "
      "one "
      "node alone, add --standalone");
}

std::string SignalWarning(const EnvironmentLookup& environment, const ProcessFacts& process,
                          const Place& place) {
  if (place.kind == Place::Kind::kBatchScript && process.parent != "slurmstepd") {
    return "this command is a plain line of a batch script: when Slurm ends the job (time limit, "
           "preemption, scancel) it ends the script's shell, and then kills this command without a "
           "grace, so that no last checkpoint is saved. Write `srun convene run ...` or `exec "
           "convene run ...`";
  }
  const bool has_terminal = environment("SLURM_PTY_PORT").has_value();
  if (place.kind == Place::Kind::kStep && IsShell(process.parent) && !has_terminal) {
    return absl::StrCat(
        "srun started a shell (", process.parent,
        "), and the shell started this command: where "
        "Slurm's ProctrackType is proctrack/cgroup, its signals reach the shell alone, so that no "
        "last checkpoint is saved. Write `exec convene run ...` in the shell's script");
  }
  return "";
}

// Where the nodes meet: at the first host, on the port of the job and the step.
void ChooseEndpoint(const EnvironmentLookup& environment, const std::vector<std::string>& hosts,
                    const std::string& list_name, int job_number, const Place& place,
                    DetectedJob* job) {
  if (hosts.empty() || job->endpoint.has_value()) return;
  const std::string& host = hosts.front();
  const int64_t number = int64_t{kPortsPerJob} * job_number + place.step;
  const int port = kPortFirst + static_cast<int>(number % kPortSpan);
  Choose(&job->endpoint, absl::StrCat(host, ":", port),
         absl::StrCat("endpoint ", host, ":", port, ", by the first host of ", list_name,
                      " and the numbers of job and step"),
         job);
  job->slurm_host = host;
  job->is_slurm_host = environment("SLURMD_NODENAME") == host;
}

}  // namespace

absl::Status DetectSlurm(const EnvironmentLookup& environment, const ProcessFacts& process,
                         DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto job_number, CountOf(environment, "SLURM_JOB_ID"));
  if (!job_number.has_value()) return absl::OkStatus();
  const bool has_inner_starter =
      job->nodes.has_value() || job->node_rank.has_value() || job->local_task.has_value();
  CONVENE_ASSIGN_OR_RETURN(Place place, PlaceIn(environment));
  // mpirun's processes on its own node have no step, the others have the step of its daemons.
  if (has_inner_starter) place = Place();
  const bool is_step = place.kind == Place::Kind::kStep;
  if (!is_step) place.step = 0;
  CONVENE_RETURN_IF_ERROR(DetectId(environment, *job_number, place, job));

  const bool has_step_list = is_step && environment("SLURM_STEP_NODELIST").has_value();
  const std::string list_name = has_step_list ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  std::vector<std::string> hosts;
  if (const auto list = environment(list_name); list.has_value()) {
    auto expanded = ExpandHostList(*list);
    CONVENE_RETURN_IF_ERROR(Annotate(expanded.status(), absl::StrCat(list_name, "=", *list)));
    hosts = *std::move(expanded);
  }
  if (is_step) {
    CONVENE_RETURN_IF_ERROR(DetectStep(environment, hosts, job));
    job->refusal = PtyRefusal(environment, process, job->nodes.value_or(1));
  } else if (!has_inner_starter) {
    CONVENE_RETURN_IF_ERROR(DetectOutsideOfSteps(environment, process, place, hosts, job));
  }
  if (!has_inner_starter) job->signal_warning = SignalWarning(environment, process, place);
  // Nobody serves at the first host where this command is on another machine, or alone.
  const bool is_shell = place.kind == Place::Kind::kShell && !has_inner_starter;
  if (!is_shell && job->refusal.empty()) {
    ChooseEndpoint(environment, hosts, list_name, *job_number, place, job);
  }
  return DetectSlurmDevices(environment, job);
}

}  // namespace convene::launcher
