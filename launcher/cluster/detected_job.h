// PURE. The facts about the job that a scheduler tells, and how its variables are read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// A scheduler may start several launchers of one job on one node (`srun --ntasks-per-node=8 convene
// run`, `mpirun` with several slots). The one of rank 0 is the node's agent; the others wait for it
// (launcher/local_tasks.h).
struct LocalTask {
  int rank = 0;
  int count = 1;
  // The same text in the tasks of one step on one node, and in no other process of this machine:
  // job, step, restart and node.
  std::string group;
  // Among the tasks of all nodes; 0: nothing tells how many these are.
  int rank_of_all = 0;
  int count_of_all = 0;
  // The tasks of a group that have the same text here are one job; another text is another job
  // beside it.
  std::string job;
  // The program that the workers run, and its arguments: the same in the tasks of one job.
  std::vector<std::string> command;
};

// The facts about this process that no variable tells.
struct ProcessFacts {
  std::string host_name;
  std::string full_name;  // the host's name with its domain; "": /etc/hosts has none
  std::string parent;     // the name of the program that started this one, such as "slurmstepd"
  bool has_own_group =
      false;            // it leads its process group, as a command of a terminal's shell does
  int hydra_proxy = 0;  // the pid of the ancestor by which MPICH started this one; 0: there is none
};

enum class Fact { kJobId, kNodes, kNodeRank, kEndpoint, kOther };

struct Reason {
  Fact fact = Fact::kOther;  // that a flag may replace, and the reason with it
  std::string text;
};

// These are only defaults: flags win. nullopt: no scheduler tells the fact.
struct DetectedJob {
  std::optional<std::string> job_id;
  std::optional<int> nodes;             // how many will take part
  std::optional<int> node_rank;         // this one's place among them
  std::optional<std::string> endpoint;  // "host:port", the same on every node
  std::optional<LocalTask> local_task;  // nullopt: nothing tells of other launchers here
  std::optional<int> workers;           // of this node, where --nproc-per-node is not given
  std::string workers_reason;
  // This node's, for --nproc-per-node gpu, cpu and auto.
  std::optional<int> gpus;
  std::optional<int> cpus;
  // The endpoint's host is this NodeName of Slurm: it may be that Slurm alone knows its address.
  std::string slurm_host;
  bool is_slurm_host = false;  // and this node has the name
  // Where a place to meet is missing: why the scheduler's variables gave none.
  std::string endpoint_hint;
  // Not empty: a usage error, unless flags tell how many nodes there are and where they meet.
  std::string refusal;
  // Not empty: each task sees a part of the node's GPUs only; a usage error where one of them is to
  // be the agent of all, and as it should be where each is an agent of its own.
  std::string hidden_gpus;
  // A shell started this command: the shell's other commands have the same job id and may meet it.
  bool is_in_shell = false;
  // Not empty: the scheduler's signals may not reach this process, or without a grace.
  std::string signal_warning;
  std::vector<Reason> reasons;        // one line a choice, for the log
  std::vector<std::string> warnings;  // one line each, for the log
};

// How many devices a list such as CUDA_VISIBLE_DEVICES shows. As in CUDA itself, the list ends at
// the first entry that names no device ("-1", Slurm's "NoDevFiles").
int CountVisibleDevices(const std::string& list);

// Whether a program of this name (ProcessFacts::parent) is a shell.
bool IsShell(const std::string& program);

// The count that a variable holds; nullopt where it is not set, InvalidArgument where it is no
// count.
absl::StatusOr<std::optional<int>> CountOf(const EnvironmentLookup& environment,
                                           const std::string& name);

// The fact that is kept at `member` of `job`.
Fact FactAt(const void* member, const DetectedJob& job);

// Sets `*target`, a fact of `job`, and notes the reason, unless an earlier scheduler has set it.
template <typename T>
void Choose(std::optional<T>* target, const T& value, const std::string& reason, DetectedJob* job) {
  if (target->has_value()) return;
  *target = value;
  job->reasons.push_back({FactAt(target, *job), reason});
}

}  // namespace convene::launcher
