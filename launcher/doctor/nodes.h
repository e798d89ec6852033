// One node's part in the look at all nodes of a job.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/machine/diagnose.h"
#include "worker_runtime/contract/contract.h"

namespace convene::launcher {

struct NodesOptions {
  std::vector<std::string> folders;
  std::string service;  // AskHealthService's socket; "": none
  std::map<std::string, std::string> environment;
  absl::Duration timeout = absl::Seconds(60);  // until all nodes have come, and for each stage
  // Called on rank 0 alone, before any rank hears the verdict: an unfit node ends the job, and with
  // it this process.
  std::function<absl::Status(int nodes, const std::vector<agent::Finding>& findings)> show;
};

// Every rank of the job calls it, with the environment of a worker. The first rank of each node
// looks at its machine, probes the other nodes, and takes part in `convene bench --pairs`; the
// other ranks wait for the verdict. Uses the job's store. Returns the errors among the findings, a
// line each, the same on all ranks; "": the nodes are fit. Errors: DeadlineExceeded with the node
// that did not come; StoreClient's; those of `show`.
absl::StatusOr<std::string> ExamineNodes(const NodesOptions& options,
                                         const worker::Contract& contract);

}  // namespace convene::launcher
