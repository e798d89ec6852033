// Asks a rendezvous daemon for its jobs' state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// One connection to a daemon, for a caller that asks again and again. Not thread-safe.
class StatusClient {
 public:
  // Blocks for at most `timeout`. InvalidArgument when its address is not "host:port"; Unavailable
  // when nothing answers in time.
  static absl::StatusOr<std::unique_ptr<StatusClient>> Open(const Endpoint& endpoint,
                                                            absl::Duration timeout);
  virtual ~StatusClient() = default;

  // One job's state, or all jobs' for `job_id` "", ordered by id. Blocks for at most `timeout`.
  // NotFound for an unknown job; Unavailable when no answer comes in time, the daemon leads no
  // more, or the connection to it broke; FailedPrecondition when the connection broke before any
  // answer, or something that is not a rendezvous daemon answers.
  virtual absl::StatusOr<std::vector<JobView>> Fetch(const std::string& job_id,
                                                     absl::Duration timeout) = 0;
};

// Open and Fetch at once, within `timeout`; of several addresses (places.h), at the first that
// answers.
absl::StatusOr<std::vector<JobView>> FetchStatus(const Endpoint& endpoint,
                                                 const std::string& job_id, absl::Duration timeout);

}  // namespace convene::rendezvous
