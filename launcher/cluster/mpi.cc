#include "launcher/cluster/mpi.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// Two jobs may share their first node, so each meets at a port of its own. Below the kernel's
// ephemeral ports (32768).
constexpr int kPortFirst = 20000;
constexpr int kPortSpan = 9000;

// The variables of one starter. Rank, size and local size are set in every process, or it is
// another starter's process.
struct Family {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job_id;  // nullptr: none
};

constexpr Family kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE"};
// Slurm's pmi2 sets PMI_RANK and PMI_SIZE, too, and none of the others.
constexpr Family kHydra = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr};

// REQUIRES: task.count > 0.
void ChooseTask(const LocalTask& task, const std::string& source, DetectedJob* job) {
  if (job->local_task.has_value()) return;
  job->local_task = task;
  if (task.count == 1 || job->workers.has_value()) return;
  job->workers = task.count;
  job->workers_reason =
      absl::StrCat(task.count, " workers, one for each process that was started here, by ", source);
}

// "1234.0;tcp://10.0.0.1,172.17.0.1:40123;tcp6://[fd00::2]:40124" gives "10.0.0.1". "" where it is
// another text.
std::string FirstAddress(absl::string_view uri) {
  const absl::string_view kScheme = ";tcp://";
  const size_t scheme = uri.find(kScheme);
  if (scheme == absl::string_view::npos) return "";
  uri.remove_prefix(scheme + kScheme.size());
  return std::string(uri.substr(0, uri.find_first_of(",:;")));
}

void ChooseOpenMpiEndpoint(const EnvironmentLookup& environment, int rank, DetectedJob* job) {
  const std::string head = environment("OMPI_MCA_orte_hnp_uri").value_or("");
  const std::string address = FirstAddress(head);
  int64_t name = 0;
  // Slurm names its first node itself; a mpirun on a login node would not be there.
  if (address.empty() || job->nodes == 1 || environment("SLURM_JOB_NODELIST").has_value() ||
      !absl::SimpleAtoi(environment("PMIX_NAMESPACE").value_or(""), &name)) {
    return;
  }
  if (rank == 0 && environment("OMPI_MCA_orte_local_daemon_uri") != head) {
    job->refusal = absl::StrCat(
        "mpirun runs on ", address,
        ", and rank 0 on another machine, whose address mpirun does not tell the other nodes. Give "
        "--nnodes N and --rdzv-endpoint HOST:PORT, HOST being one of the nodes, or call mpirun on "
        "the first node of its list");
    return;
  }
  const std::string endpoint = FormatHostPort(
      address, kPortFirst + static_cast<int>((name % kPortSpan + kPortSpan) % kPortSpan));
  Choose(&job->endpoint, endpoint,
         absl::StrCat("endpoint ", endpoint,
                      ", by mpirun's own machine (OMPI_MCA_orte_hnp_uri) and PMIX_NAMESPACE"),
         job);
}

// Returns whether this is a process of the family.
absl::StatusOr<bool> DetectFamily(const Family& family, const EnvironmentLookup& environment,
                                  const ProcessFacts& process, DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto rank, CountOf(environment, family.rank));
  CONVENE_ASSIGN_OR_RETURN(const auto size, CountOf(environment, family.size));
  CONVENE_ASSIGN_OR_RETURN(const auto local_rank, CountOf(environment, family.local_rank));
  CONVENE_ASSIGN_OR_RETURN(const auto local_size, CountOf(environment, family.local_size));
  if (!rank.has_value() || !size.has_value() || local_size.value_or(0) < 1) return false;
  if (*size % *local_size != 0 || local_rank.value_or(0) >= *local_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        family.size, "=", *size, ", and on this node ", family.local_rank, "=",
        local_rank.value_or(0), " of ", family.local_size, "=", *local_size,
        ": start as many processes on each node, such as one (`mpirun --map-by ppr:1:node`, "
        "`mpiexec -ppn 1`)"));
  }
  const int nodes = *size / *local_size;
  Choose(&job->nodes, nodes,
         absl::StrCat(nodes, " node(s), by ", family.size, "=", *size, " and ", family.local_size,
                      "=", *local_size),
         job);
  // With several processes on a node, ranks may go around the nodes or fill them one by one.
  if (*local_size == 1) {
    Choose(&job->node_rank, *rank, absl::StrCat("node rank ", *rank, ", by ", family.rank), job);
  }
  std::string id;
  if (family.job_id != nullptr) id = environment(family.job_id).value_or("");
  if (!id.empty()) {
    Choose(&job->job_id, id, absl::StrCat("job id ", id, ", by ", family.job_id), job);
  }
  // Two runs of one user may be on this machine at the same time.
  if (id.empty() && process.hydra_proxy > 0) id = absl::StrCat(process.hydra_proxy);
  ChooseTask({.rank = local_rank.value_or(0),
              .count = *local_size,
              .group = absl::StrCat("mpi-", id, "-", process.host_name),
              .rank_of_all = *rank,
              .count_of_all = *size},
             family.local_size, job);
  return true;
}

absl::Status DetectFlux(const EnvironmentLookup& environment, const ProcessFacts& process,
                        DetectedJob* job) {
  const auto id = environment("FLUX_JOB_ID");
  CONVENE_ASSIGN_OR_RETURN(const auto nodes, CountOf(environment, "FLUX_JOB_NNODES"));
  CONVENE_ASSIGN_OR_RETURN(const auto size, CountOf(environment, "FLUX_JOB_SIZE"));
  CONVENE_ASSIGN_OR_RETURN(const auto rank, CountOf(environment, "FLUX_TASK_RANK"));
  CONVENE_ASSIGN_OR_RETURN(const auto local_rank, CountOf(environment, "FLUX_TASK_LOCAL_ID"));
  if (!id.has_value() || nodes.value_or(0) < 1 || !rank.has_value()) return absl::OkStatus();
  const int count = size.value_or(*nodes) / *nodes;
  if (size.value_or(*nodes) != count * *nodes || local_rank.value_or(0) >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("FLUX_JOB_SIZE=", size.value_or(0), " tasks on FLUX_JOB_NNODES=", *nodes,
                     " nodes, and FLUX_TASK_LOCAL_ID=", local_rank.value_or(0),
                     ": start as many on each node, such as one (`flux run --tasks-per-node=1`)"));
  }
  Choose(&job->job_id, *id, absl::StrCat("job id ", *id, ", by FLUX_JOB_ID"), job);
  Choose(&job->nodes, *nodes, absl::StrCat(*nodes, " node(s), by FLUX_JOB_NNODES"), job);
  if (count == 1) {
    Choose(&job->node_rank, *rank, absl::StrCat("node rank ", *rank, ", by FLUX_TASK_RANK"), job);
  }
  ChooseTask({.rank = local_rank.value_or(0),
              .count = count,
              .group = absl::StrCat("flux-", *id, "-", process.host_name),
              .rank_of_all = *rank,
              .count_of_all = size.value_or(*nodes)},
             "FLUX_JOB_SIZE and FLUX_JOB_NNODES", job);
  return absl::OkStatus();
}

}  // namespace

absl::Status DetectMpi(const EnvironmentLookup& environment, const ProcessFacts& process,
                       DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const bool is_open_mpi,
                           DetectFamily(kOpenMpi, environment, process, job));
  if (is_open_mpi) {
    CONVENE_ASSIGN_OR_RETURN(const auto rank, CountOf(environment, kOpenMpi.rank));
    ChooseOpenMpiEndpoint(environment, *rank, job);
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(const bool is_hydra, DetectFamily(kHydra, environment, process, job));
  if (is_hydra) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(DetectFlux(environment, process, job));
  CONVENE_ASSIGN_OR_RETURN(const auto pals_node, CountOf(environment, "PALS_NODEID"));
  if (pals_node.has_value()) {
    Choose(&job->node_rank, *pals_node, absl::StrCat("node rank ", *pals_node, ", by PALS_NODEID"),
           job);
  }
  return absl::OkStatus();
}

}  // namespace convene::launcher
