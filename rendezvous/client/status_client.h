// Asks a rendezvous daemon what it knows.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// One job's state, or all jobs' for `job_id` "", ordered by id. Blocks for at most `timeout`.
// InvalidArgument when `endpoint` is not "host:port"; NotFound for an unknown job; Unavailable when
// nobody answers in time; FailedPrecondition when something that is not a rendezvous daemon does.
absl::StatusOr<std::vector<JobView>> FetchStatus(const std::string& endpoint,
                                                 const std::string& job_id, absl::Duration timeout);

}  // namespace convene::rendezvous
