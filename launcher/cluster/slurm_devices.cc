#include "launcher/cluster/slurm_devices.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

struct Counted {
  int count = 0;
  std::string source;  // "SLURM_GPUS_ON_NODE=8"
};

std::optional<Counted> FirstListed(const EnvironmentLookup& environment,
                                   const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto list = environment(name);
    if (list.has_value())
      return Counted{CountVisibleDevices(*list), absl::StrCat(name, "=", *list)};
  }
  return std::nullopt;
}

// SLURM_JOB_GPUS is of no use: it tells the batch script's node, and every step inherits it.
absl::StatusOr<std::optional<Counted>> GpusOfSlurm(const EnvironmentLookup& environment) {
  CONVENE_ASSIGN_OR_RETURN(const auto count, CountOf(environment, "SLURM_GPUS_ON_NODE"));
  if (!count.has_value()) return FirstListed(environment, {"SLURM_STEP_GPUS"});
  return Counted{*count, absl::StrCat("SLURM_GPUS_ON_NODE=", *count)};
}

int TasksHere(const DetectedJob& job) {
  return job.local_task.has_value() ? job.local_task->count : 1;
}

std::string HiddenGpus(const Counted& given, const Counted& visible, int tasks) {
  return absl::StrCat(
      "srun hides from each of this node's ", tasks, " tasks the GPUs of the others (",
      given.source, ", but ", visible.source,
      " in this task), and one `convene run` starts all the workers of a ",
      "node. Leave --gpus-per-task and --gpu-bind out, or start one task a node that sees every "
      "GPU: `srun --ntasks-per-node=1 --gpus-per-node=",
      given.count, " convene run ...`");
}

absl::Status DetectGpus(const EnvironmentLookup& environment, DetectedJob* job,
                        std::string* source) {
  CONVENE_ASSIGN_OR_RETURN(const std::optional<Counted> given, GpusOfSlurm(environment));
  const std::optional<Counted> visible =
      FirstListed(environment, {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"});
  if (!given.has_value() && !visible.has_value()) return absl::OkStatus();
  const Counted& chosen =
      !given.has_value() || (visible.has_value() && visible->count < given->count) ? *visible
                                                                                   : *given;
  job->gpus = chosen.count;
  *source = chosen.source;
  if (!given.has_value() || !visible.has_value() || visible->count == given->count) {
    return absl::OkStatus();
  }
  const bool sees_less = visible->count < given->count;
  const int tasks = TasksHere(*job);
  if (sees_less && visible->count > 0 && visible->count < tasks) {
    job->hidden_gpus = HiddenGpus(*given, *visible, tasks);
    return absl::OkStatus();
  }
  job->warnings.push_back(absl::StrCat(
      visible->source, " and ", given->source, " do not agree: ", chosen.count,
      sees_less ? " count, since a worker can use only the GPUs that it sees (--gpu-bind and "
                  "--gpus-per-task hide GPUs from a task)"
                : " count, since the other visible GPUs belong to other jobs or steps"));
  return absl::OkStatus();
}

// The step's own count on this node. A task may be bound to fewer: sched_getaffinity knows.
absl::Status DetectCpus(const EnvironmentLookup& environment, DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto on_node, CountOf(environment, "SLURM_CPUS_ON_NODE"));
  CONVENE_ASSIGN_OR_RETURN(const auto per_task, CountOf(environment, "SLURM_CPUS_PER_TASK"));
  if (on_node.has_value()) job->cpus = on_node;
  if (per_task.has_value() && job->local_task.has_value()) {
    const int of_tasks = *per_task * TasksHere(*job);
    job->cpus = std::min(job->cpus.value_or(of_tasks), of_tasks);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DetectSlurmTasks(const EnvironmentLookup& environment, DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto local_id, CountOf(environment, "SLURM_LOCALID"));
  const auto tasks = environment("SLURM_GTIDS");  // "4,5,6,7"
  if (!local_id.has_value() || !tasks.has_value()) return absl::OkStatus();
  const std::vector<std::string> here = absl::StrSplit(*tasks, ',');
  const int count = static_cast<int>(here.size());
  if (*local_id >= count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SLURM_LOCALID=", *local_id, " contradicts SLURM_GTIDS=", *tasks, ", which names ", count,
        " tasks on this node: was one of them set by hand? Start the command by srun, or give "
        "--standalone"));
  }
  const std::string node = environment("SLURMD_NODENAME").value_or("");
  job->local_task = LocalTask{*local_id, count, absl::StrCat("slurm-", *job->job_id, "-", node)};
  CONVENE_ASSIGN_OR_RETURN(const auto all, CountOf(environment, "SLURM_STEP_NUM_TASKS"));
  CONVENE_ASSIGN_OR_RETURN(const auto rank, CountOf(environment, "SLURM_PROCID"));
  if (all.has_value() && rank.has_value()) {
    job->local_task->rank_of_all = *rank;
    job->local_task->count_of_all = *all;
  }
  // The same rule on every node, also on one that has a single task of several tasks a node.
  if (count > 1 || all.value_or(0) > job->nodes.value_or(1)) {
    job->workers = count;
    job->workers_reason =
        absl::StrCat(count, " worker(s), one for each task that srun started on this node");
  }
  return absl::OkStatus();
}

absl::Status DetectSlurmDevices(const EnvironmentLookup& environment, DetectedJob* job) {
  std::string source;
  CONVENE_RETURN_IF_ERROR(DetectGpus(environment, job, &source));
  CONVENE_RETURN_IF_ERROR(DetectCpus(environment, job));
  if (job->workers.has_value() || job->gpus.value_or(0) == 0) return absl::OkStatus();
  job->workers = job->gpus;
  job->workers_reason = absl::StrCat(*job->gpus, " worker(s), one for each GPU, by ", source);
  return absl::OkStatus();
}

}  // namespace convene::launcher
