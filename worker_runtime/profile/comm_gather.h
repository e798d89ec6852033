// The way of each rank's collectives to all ranks.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/profile/comm_log.h"

namespace convene::worker {

// Every rank of `host` calls it with its own sheet; all get all, by rank. Errors: the collective's.
absl::StatusOr<std::vector<CommSheet>> GatherComm(const CommSheet& sheet, Collective& host);

}  // namespace convene::worker
