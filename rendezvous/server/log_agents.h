// Of the daemon, for the log hub: whom to ask for their workers' output.
#pragma once

#include "absl/status/statusor.h"
#include "rendezvous/quorum/log_lines.h"

namespace convene::rendezvous {

class LogAgents {
 public:
  virtual ~LogAgents() = default;

  // Asks the agents of a run, of those that the request names, for their workers' lines, and with
  // `follow` those that join later too, until UnwatchLogs or the run's end. The answer names whom
  // it asked, and who is too old to be asked. NotFound names the runs, or nodes, that there are;
  // FailedPrecondition, when the run is over, says where its log files are; Unavailable when the
  // daemon stops.
  virtual absl::StatusOr<LogStart> WatchLogs(WatchId watch, const LogRequest& request) = 0;
  virtual void UnwatchLogs(WatchId watch) = 0;
};

}  // namespace convene::rendezvous
