#include "launcher/environment_detection.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/flags.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// Two Slurm jobs may share their first node, so each meets at its own port: this one plus the job
// id modulo the span. Below the kernel's ephemeral ports (32768).
constexpr int kSlurmPortFirst = kDefaultRendezvousPort;
constexpr int kSlurmPortSpan = 2000;

absl::StatusOr<std::optional<int>> Number(const EnvironmentLookup& environment,
                                          const std::string& name) {
  const auto text = environment(name);
  if (!text.has_value()) return std::optional<int>();
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *text, " is no count; unset it or start with --standalone"));
  }
  return std::optional<int>(number);
}

// Sets `*target` unless an earlier scheduler has set it.
template <typename T>
void Choose(std::optional<T>* target, const T& value, const std::string& reason, DetectedJob* job) {
  if (target->has_value()) return;
  *target = value;
  job->reasons.push_back(reason);
}

absl::Status DetectOpenMpi(const EnvironmentLookup& environment, DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto rank, Number(environment, "OMPI_COMM_WORLD_RANK"));
  CONVENE_ASSIGN_OR_RETURN(const auto size, Number(environment, "OMPI_COMM_WORLD_SIZE"));
  CONVENE_ASSIGN_OR_RETURN(const auto local, Number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  if (!rank.has_value() || !size.has_value()) return absl::OkStatus();
  if (local.value_or(1) > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("mpirun started ", *local,
                     " launchers on this node (OMPI_COMM_WORLD_LOCAL_SIZE); convene spawns the "
                     "workers itself: use `mpirun --map-by ppr:1:node`"));
  }
  Choose(&job->nodes, *size, absl::StrCat(*size, " nodes, by OMPI_COMM_WORLD_SIZE"), job);
  Choose(&job->node_rank, *rank, absl::StrCat("node rank ", *rank, ", by OMPI_COMM_WORLD_RANK"),
         job);
  if (const auto id = environment("PMIX_NAMESPACE"); id.has_value()) {
    Choose(&job->job_id, *id, absl::StrCat("job id ", *id, ", by PMIX_NAMESPACE"), job);
  }
  return absl::OkStatus();
}

// The variable of the step (under srun) or else of the whole allocation.
std::string StepOrJob(const EnvironmentLookup& environment, const std::string& of_step,
                      const std::string& of_job) {
  return environment(of_step).has_value() ? of_step : of_job;
}

absl::Status DetectSlurmEndpoint(const EnvironmentLookup& environment, int job_number,
                                 DetectedJob* job) {
  const std::string name = StepOrJob(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  const auto list = environment(name);
  if (!list.has_value()) return absl::OkStatus();
  const auto host = FirstSlurmHost(*list);
  CONVENE_RETURN_IF_ERROR(Annotate(host.status(), absl::StrCat(name, "=", *list)));
  const int port = kSlurmPortFirst + job_number % kSlurmPortSpan;
  Choose(&job->endpoint, absl::StrCat(*host, ":", port),
         absl::StrCat("endpoint ", *host, ":", port, ", by the first host of ", name,
                      " and the job's number"),
         job);
  return absl::OkStatus();
}

absl::Status DetectSlurm(const EnvironmentLookup& environment, DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto job_number, Number(environment, "SLURM_JOB_ID"));
  if (!job_number.has_value()) return absl::OkStatus();
  const bool under_mpirun = job->node_rank.has_value();
  CONVENE_ASSIGN_OR_RETURN(const auto local_id, Number(environment, "SLURM_LOCALID"));
  if (!under_mpirun && local_id.value_or(0) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("srun started more than one launcher on this node (SLURM_LOCALID=", *local_id,
                     "); convene spawns the workers itself: use `srun --ntasks-per-node=1`"));
  }
  std::string id = absl::StrCat(*job_number);
  if (const auto step = environment("SLURM_STEP_ID"); step.has_value()) {
    absl::StrAppend(&id, ".", *step);
  }
  Choose(&job->job_id, id, absl::StrCat("job id ", id, ", by SLURM_JOB_ID and SLURM_STEP_ID"), job);
  const std::string nodes_name = StepOrJob(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES");
  CONVENE_ASSIGN_OR_RETURN(const auto nodes, Number(environment, nodes_name));
  if (nodes.has_value()) {
    Choose(&job->nodes, *nodes, absl::StrCat(*nodes, " nodes, by ", nodes_name), job);
  }
  CONVENE_ASSIGN_OR_RETURN(const auto node_id, Number(environment, "SLURM_NODEID"));
  if (node_id.has_value()) {
    Choose(&job->node_rank, *node_id, absl::StrCat("node rank ", *node_id, ", by SLURM_NODEID"),
           job);
  }
  return DetectSlurmEndpoint(environment, *job_number, job);
}

absl::Status DetectKubernetes(const EnvironmentLookup& environment, DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto index, Number(environment, "JOB_COMPLETION_INDEX"));
  if (!index.has_value()) return absl::OkStatus();
  Choose(&job->node_rank, *index, absl::StrCat("node rank ", *index, ", by JOB_COMPLETION_INDEX"),
         job);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DetectedJob> DetectJob(const EnvironmentLookup& environment) {
  DetectedJob job;
  CONVENE_RETURN_IF_ERROR(DetectOpenMpi(environment, &job));
  CONVENE_RETURN_IF_ERROR(DetectSlurm(environment, &job));
  CONVENE_RETURN_IF_ERROR(DetectKubernetes(environment, &job));
  return job;
}

absl::StatusOr<std::string> FirstSlurmHost(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host.push_back(node_list[i]);
      continue;
    }
    const size_t close = node_list.find(']', i);
    const size_t first_end = node_list.find_first_of(",-]", i);
    if (close == std::string::npos || first_end == i + 1) {
      return absl::InvalidArgumentError("not a node list such as node[01-04,7],login");
    }
    host += node_list.substr(i + 1, first_end - i - 1);
    i = close;
  }
  if (host.empty() || host.find(']') != std::string::npos) {
    return absl::InvalidArgumentError("not a node list such as node[01-04,7],login");
  }
  return host;
}

}  // namespace convene::launcher
