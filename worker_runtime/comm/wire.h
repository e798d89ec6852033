// Messages between the ranks of one group; each transport implements them for GroupCollective. The
// algorithms stand above it, once, in group_collective.cc; so every implementation gives the same
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "tools/base/clock.h"

namespace convene::worker {

// Two independent orders of messages between two ranks, so that a Send may stay open across
// collectives.
enum class Lane { kCollective, kPointToPoint };

// A message is received by the receive with the same lane, sequence and size, posted by the rank it
// was sent to. A message without a matching receive is never delivered: ranks that disagree wait
// until their deadline, and never read or write out of bounds.
struct MessageTag {
  Lane lane = Lane::kCollective;
  uint32_t sequence = 0;  // between these two ranks, in this direction, in this lane
  size_t size_bytes = 0;  // below 4 GiB
};

// The time that a call has for all its waits together. Time in which this process was stopped does
// not count where the wire can tell (wait_watch.h).
struct WaitLimit {
  static WaitLimit From(MonotonicTime now, absl::Duration timeout) { return {now, now + timeout}; }

  MonotonicTime since;
  MonotonicTime deadline;
};

// The wires of one rank in one group.
//
// Peers are ranks within the group, never the caller's own. One thread at a time, except Abort and
// CheckOpen (any thread).
//
// Errors: Unavailable when a peer's connection broke; DeadlineExceeded when an Await passed its
// deadline; Abort's after Abort. Texts name the peer where known. After an error only Withdraw,
// Abort and the destructor may be called. Destroying a wire (for the last group that two ranks
// share) is what peers see as a broken connection.
class Wire {
 public:
  virtual ~Wire() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Of `peer`, or of this rank, among all ranks of the job.
  virtual int GlobalRank(int peer) const = 0;

  // Abort()'s error after it: for calls that have nobody to wait for.
  virtual absl::Status CheckOpen() = 0;

  // Neither blocks. `data` stays alive (and, when sent, unchanged) until the matching Await or
  // Withdraw has returned.
  virtual absl::Status PostReceive(int peer, const MessageTag& tag, void* data) = 0;
  virtual absl::Status PostSend(int peer, const MessageTag& tag, const void* data) = 0;

  // Blocks until one more receive from (send to) `peer` in this lane is complete: it is once both
  // ends have been posted and the bytes have moved, whether or not the other end waits. They
  // complete in posting order. REQUIRES: one is open.
  virtual absl::Status AwaitReceive(int peer, Lane lane, const WaitLimit& limit) = 0;
  virtual absl::Status AwaitSend(int peer, Lane lane, const WaitLimit& limit) = 0;

  // Gives up all that was posted: once it has returned, no memory given to Post* is touched again.
  // With a `hang_up` that is not OK, the reason, peers that wait for this rank, now or later, get
  // Unavailable instead of waiting for their deadline; where that breaks this rank's other wires
  // too, their errors give the reason.
  virtual void Withdraw(const absl::Status& hang_up) = 0;

  // Makes every Await of now and later return `why`, which is not OK; the first one stays. Any
  // thread.
  virtual void Abort(const absl::Status& why) = 0;
};

}  // namespace convene::worker
