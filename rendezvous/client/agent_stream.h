// An agent's stream to the rendezvous daemon, by which the agent takes part in its job.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// One `Attend` call. Thread-safe.
class AgentStream {
 public:
  struct Handlers {
    // Handlers are called one at a time, in order, from a thread of the stream; never after on_end
    // and never after the destructor returned. They must not block and must not destroy the stream.
    std::function<void(DaemonEvent)> on_event;
    // Called once: OK after the daemon's Close; Aborted when another incarnation took this node's
    // place; InvalidArgument when the hello contradicts the job, or when the daemon's words make no
    // sense; Unavailable when the connection broke. A message of a kind that this version does not
    // know is ignored, with a warning for the first one.
    std::function<void(absl::Status)> on_end;
  };

  // Dials `endpoint` and sends the hello, with the time (said_at) in it. Returns once
  // the channel is connected: Unavailable when that took longer than `connect_timeout`, the text
  // naming the endpoint and the last cause (the cause alone at an endpoint that is dialled once),
  // also where the listener closes each connection without a byte, as a proxy does with nobody
  // behind it; FailedPrecondition when something that is not a rendezvous daemon answers there;
  // PermissionDenied when the daemon has another join token, or this side only its read token.
  // `is_listened_to_here`: a program of this machine listens there, so a listener that closes each
  // connection is no proxy either.
  static absl::StatusOr<std::unique_ptr<AgentStream>> Open(const Endpoint& endpoint,
                                                           Incarnation incarnation, Hello hello,
                                                           const Handlers& handlers,
                                                           absl::Duration connect_timeout,
                                                           bool is_listened_to_here = false);
  // Cancels an open call and waits until no handler runs, and for at most 5 s until gRPC is done.
  virtual ~AgentStream() = default;

  // The start of the last try of an Open that failed, if nothing listened at the endpoint: its
  // machine refused the connection at every address, so no daemon ran there.
  static std::optional<MonotonicTime> RefusedAt(const absl::Status& opened);

  // A moment before which the hello was not sent.
  virtual MonotonicTime opened_at() const = 0;

  // The address of this machine that the stream leaves from; "" when that is not known.
  virtual const std::string& own_host() const = 0;

  // A second descriptor of its connection, once; invalid when none was to be had. While it is open
  // the daemon does not see this process's end. (The end of the stream shuts the connection down.)
  virtual UniqueFd TakeConnection() = 0;

  // Queues the event; events are sent in order. It is lost without an error when the stream has
  // ended (on_end tells).
  virtual void Send(Epoch epoch, AgentEvent event) = 0;
};

}  // namespace convene::rendezvous
