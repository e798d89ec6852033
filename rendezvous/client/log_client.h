// Reads a run's output through its rendezvous daemon.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// One `WatchLogs` call. While its user takes no lines, none are read from the network: the daemon,
// and then the agents, wait. Not thread-safe; no thread of its own.
class LogClient {
 public:
  using News = std::variant<LogStart, LogBatch, LogsGone, RunEnded>;

  // Blocks for at most `timeout`. InvalidArgument when its address is not "host:port"; Unavailable
  // when nothing takes the connection in time.
  static absl::StatusOr<std::unique_ptr<LogClient>> Open(const Endpoint& endpoint,
                                                         const LogRequest& request,
                                                         absl::Duration timeout);
  // Cancels the call.
  virtual ~LogClient() = default;

  // The next piece of news; none when there was none until `deadline`. After the end, the call's
  // status: NotFound and FailedPrecondition with the daemon's words, FailedPrecondition also when
  // the daemon is too old; Unavailable when there are too many viewers, when the daemon stopped, or
  // the connection broke.
  virtual absl::StatusOr<std::optional<News>> Next(MonotonicTime deadline) = 0;
};

}  // namespace convene::rendezvous
