// PURE. The daemon's judgement: what to do about a job's state, and why.
//
// Forming, first epoch:
//   every expected node is ready                                 -> form
//   nodes_min are ready, all known are, last_call has passed     -> form
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
//   join_timeout has passed                                      -> drop those that did not stop
// Before all of these, of the nodes that are excluded (conduct.h):
//   its time is over                                             -> admit
//   forming, and without it nodes_min cannot be reached, or
//   were not within join_timeout                                 -> admit as many as are missing
// otherwise                                                      -> wait
//
// Who is expected at the first epoch? Those that a scheduler counts (Hello::nodes_expected): when
// some of them are late, the last call waits for them. When nobody counts, nodes_max are a limit
// and not a promise: once nodes_min are ready and nobody is on the way, the job waits only until no
// node has arrived for kGathering, which keeps together what one command started on many nodes; who
// comes later is let in by `admission`. A last call that was asked for is honoured in both cases.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// What the job's first Hello asked for.
inline constexpr absl::Duration kGathering = absl::Milliseconds(100);
inline constexpr absl::Duration kLastCall = absl::Seconds(5);  // for those a scheduler counts

struct JobPolicy {
  int nodes_min = 1;
  int nodes_max = 1;
  int nodes_expected = 1;  // in [nodes_min, nodes_max]
  int max_restarts = 0;
  absl::Duration join_timeout;
  absl::Duration last_call;  // zero: nobody counts on anybody, kGathering
  int spares = 0;
  absl::Duration restart_window;
  int max_stuck_restarts = 0;
  absl::Duration admission;
};

// Hello::last_call zero: none was asked for. REQUIRES: ValidateHello(hello) is OK.
JobPolicy PolicyOf(const Hello& hello);

// InvalidArgument naming the field, its value and what is allowed.
absl::Status ValidateHello(const Hello& hello);

// InvalidArgument naming the first of nodes_min, nodes_max and max_restarts that differs, with both
// values. The other fields need not agree: the first Hello's hold.
absl::Status CheckAgreement(const JobPolicy& policy, const Hello& hello);

struct Decision {
  enum class Kind { kWait, kForm, kStop, kDrop, kAdmit, kDismiss, kClose };
  // What a kWait waits for: the log shows a wait when this changes, not at each arrival.
  enum class WaitingFor {
    kNothing,
    kNodes,
    kLastCall,
    kSlowNodes,
    kBackoff,
    kStops,
    kWorkers,
    kArrivals
  };

  Kind kind = Kind::kWait;
  WaitingFor waiting_for = WaitingFor::kNothing;
  std::vector<MemberId> members;          // kForm: by group rank; kDrop, kAdmit, kDismiss: whom
  std::vector<int> seats;                 // kForm: of each
  StopKind stop_kind = StopKind::kAbort;  // kStop: said to every member that still runs
  Outcome outcome = Outcome::kFailed;     // kClose: said to every node
  std::string why;
  // kWait: decide again then at the latest, even when nothing happens.
  MonotonicTime wake_at = MonotonicTime::InfiniteFuture();
};

Decision Decide(MonotonicTime now, const JobState& state, const JobPolicy& policy);

}  // namespace convene::rendezvous
