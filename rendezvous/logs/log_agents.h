// The daemon's side of the log hub: it asks agents for their workers' output.
#pragma once

#include "absl/status/statusor.h"
#include "rendezvous/quorum/log_lines.h"

namespace convene::rendezvous {

class LogAgents {
 public:
  virtual ~LogAgents() = default;

  // Asks the agents of a run (of the hosts that the request names) for their workers' lines. With
  // `follow` also the agents that join later, until UnwatchLogs or the run's end. The answer names
  // the agents that were asked, and the agents that are too old to be asked. NotFound names the
  // runs, or the nodes, that the daemon knows; FailedPrecondition, when the run is over, says where
  // its log files are; Unavailable when the daemon stops.
  virtual absl::StatusOr<LogStart> WatchLogs(WatchId watch, const LogRequest& request) = 0;
  virtual void UnwatchLogs(WatchId watch) = 0;
};

}  // namespace convene::rendezvous
