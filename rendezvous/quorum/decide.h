// PURE. Decides what the daemon does about a job's state, and says why.
//
// Forming, first epoch:
//   every expected node is ready                                 -> form
//   nodes_min are ready, all known are, last_call has passed     -> form
// Forming, nodes_min are ready, but a node that joined again
// still stops workers of an older epoch                          -> wait for its Ready, not longer
//                                                                   than its agent lets them live
// Forming, later epochs (spares and late nodes fill the holes):
//   nodes_min are ready, all survivors are                       -> form; after the second epoch in
//                                                                   vain (job_state.h) and each
//                                                                   further one, with back-off
// Forming, join_timeout has passed:
//   nodes_min are ready                                          -> form, without the others
//   fewer                                                        -> close (timed out)
// Forming, every node has left                                   -> close (left)
// Running:
//   a worker failed; the budget is spent, no step has been made
//   for max_stuck_restarts, or the failure is final              -> close (failed)
//   a worker failed, a member is lost or left                    -> stop (abort)
//   every member's workers succeeded                             -> close (succeeded)
//   a node waits, a seat is free, no member has succeeded yet,
//   and nobody has arrived for `admission` (admission.h),
//     none is away                                               -> stop (checkpoint)
//   a node waits beyond nodes_max + spares for join_timeout      -> dismiss it
// Stopping:
//   as running for the budget and for success
//   the stop was for a checkpoint and something broke            -> stop (abort)
//   StopTimeout has passed                                       -> drop the members that did not
//                                                                   stop
// An epoch would form, or a stop would let nodes in, and the
// daemon is told to end, and no node may go on with the job in
// its place                                                      -> wait: each node would have to
//                                                                   stop its workers once more
// Before all of these, of the nodes that are excluded (conduct.h):
//   its time is over                                             -> admit
//   forming, and without it nodes_min cannot be reached, or
//   nodes_min were not ready within join_timeout                 -> admit as many as are missing
// otherwise                                                      -> wait
//
// Which nodes are expected at the first epoch? As many as the scheduler counts
// (Hello::nodes_expected): when some of them are late, the last call waits for them. Where no
// scheduler counts, nodes_max is a limit and not a promise: once nodes_min are ready and no other
// node is on the way, the job waits only until no node has arrived for kGathering. This wait keeps
// nodes together that one command started. A node that comes later is let in by `admission`. A last
// call that the user asked for holds in both cases.
//
// Why is an epoch held back only for a node that is here? A stream that ends mostly means that the
// agent was killed; its guardian keeps the connection open until the workers are dead, so that the
// next epoch may begin at once. Waiting for the lease of every node whose stream ended would make
// each such recovery slower by up to a lease (5 s). A connection that was merely reset is the rare
// case: there the agent dials again at once. If its Hello comes while the other members stop, the
// job waits for this node's Ready, and one restart serves for both. If the other members were
// quicker and the next epoch has begun, the two epochs overlap for as long as this node's workers
// take to stop: the agent kills them before the lease of the old stream ends
// (agent/core/machine.h).
//
// join_timeout is the measure of five waits, and their relation to the stop graces is this:
//
//   minimum      fewer than nodes_min are ready. Counts from the moment when the last member had
//                stopped, so that no grace is part of it; and is not over while nodes that came
//                back on a new connection may still stop their old workers.
//   first round  nodes_min are ready, others are on the way to the first epoch. Counts from the
//                job's start. A health check must fit in (the launcher refuses one that does not).
//   seat         a node beyond nodes_max and the spares. Counts from its joining.
//   stop         members that were told to stop (StopTimeout): the longer one of join_timeout and
//                the longest stop that any agent told of (Hello::stop_limit: its graces, SIGKILL,
//                its health check). A node that still saves is not given up.
//   redial       an agent that lost its stream (RedialTimeout in agent/core/machine.h): the longer
//                one of join_timeout and the lease.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// How long the first epoch waits after the latest arrival, where no scheduler counts the nodes.
inline constexpr absl::Duration kGathering = absl::Milliseconds(100);
// The default last call where a scheduler counts the nodes.
inline constexpr absl::Duration kLastCall = absl::Seconds(5);

// The policy that the job's first Hello asked for.
struct JobPolicy {
  int nodes_min = 1;
  int nodes_max = 1;
  int nodes_expected = 1;  // in [nodes_min, nodes_max]
  int max_restarts = 0;
  absl::Duration join_timeout;
  absl::Duration last_call;  // zero: no scheduler counts the nodes; kGathering holds
  int spares = 0;
  absl::Duration restart_window;
  int max_stuck_restarts = 0;
  absl::Duration admission;
  bool excludes_stragglers = false;
};

// Hello::last_call zero means that no last call was asked for. REQUIRES: ValidateHello(hello) is
// OK.
JobPolicy PolicyOf(const Hello& hello);

// InvalidArgument naming the field, its value and the allowed values.
absl::Status ValidateHello(const Hello& hello);

// InvalidArgument naming the first of nodes_min, nodes_max and max_restarts that differs, with both
// values. The other fields need not agree: the first Hello's hold.
absl::Status CheckAgreement(const JobPolicy& policy, const Hello& hello);

// The longest time from a Stop to a member's Ready, after which the member is given up.
absl::Duration StopTimeout(const JobState& state, const JobPolicy& policy);

struct Decision {
  enum class Kind { kWait, kForm, kStop, kDrop, kAdmit, kDismiss, kClose };
  // The reason of a kWait, in one word: the log shows a wait when this changes, not at each
  // arrival.
  enum class WaitingFor {
    kNothing,
    kNodes,
    kLastCall,
    kSlowNodes,
    kOldWorkers,
    kBackoff,
    kStops,
    kWorkers,
    kArrivals,
    kNextDaemon
  };

  Kind kind = Kind::kWait;
  WaitingFor waiting_for = WaitingFor::kNothing;
  std::vector<MemberId> members;          // kForm: by group rank; kDrop, kAdmit, kDismiss: whom
  std::vector<int> seats;                 // kForm: of each
  StopKind stop_kind = StopKind::kAbort;  // kStop: said to every member that still runs
  Outcome outcome = Outcome::kFailed;     // kClose: said to every node
  std::string why;
  // kWait: the latest time of the next decision, even without an event.
  MonotonicTime wake_at = MonotonicTime::InfiniteFuture();
};

Decision Decide(MonotonicTime now, const JobState& state, const JobPolicy& policy);

}  // namespace convene::rendezvous
