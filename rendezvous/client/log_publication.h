// An agent's lines on their way to one viewer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// One `PublishLogs` call, over a connection of its own. Thread-safe, but for one Write or Finish at
// a time.
class LogPublication {
 public:
  // Dials `endpoint` for at most `timeout`; Unavailable when nothing takes the
  // connection. `on_end` is called once, from a thread of gRPC, when the daemon ends the call or
  // the connection breaks; not after the destructor returned. It must not block and must not
  // destroy the publication.
  static absl::StatusOr<std::unique_ptr<LogPublication>> Open(const Endpoint& endpoint,
                                                              absl::Duration timeout,
                                                              const std::function<void()>& on_end);
  // Cancels an open call and waits until on_end does not run, and for at most 5 s until gRPC is
  // done.
  virtual ~LogPublication() = default;

  // Waits until the network has room for the batch: as long as the viewer takes nothing. False: the
  // call is over.
  virtual bool Write(const LogBatch& batch) = 0;
  // Says that nothing follows, and waits until the daemon has heard it, or `deadline`.
  virtual void Finish(MonotonicTime deadline) = 0;
  // Ends the call now: a Write or a Finish that waits returns.
  virtual void Cancel() = 0;
};

}  // namespace convene::rendezvous
