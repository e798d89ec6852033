// PURE. The facts about the job that the scheduler which started this process tells.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// These are only defaults: flags win. nullopt: no scheduler tells the fact.
struct DetectedJob {
  std::optional<std::string> job_id;
  std::optional<int> nodes;             // how many will take part
  std::optional<int> node_rank;         // this one's place among them
  std::optional<std::string> endpoint;  // "host:port", the same on every node
  std::vector<std::string> reasons;     // one line a choice, for the log
};

// Asks Open MPI's variables, then Slurm's, then Kubernetes' (indexed job); each fills the fields
// that are still open. InvalidArgument when a variable is no number, when a node list cannot be
// read, and when more than one launcher was started on this node (srun or mpirun with several tasks
// a node): the text names the option to use.
absl::StatusOr<DetectedJob> DetectJob(const EnvironmentLookup& environment);

// The first host of Slurm's short form: "node[003-007,9],login" is "node003".
absl::StatusOr<std::string> FirstSlurmHost(const std::string& node_list);

}  // namespace convene::launcher
