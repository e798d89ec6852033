// PURE. The part of a job that a daemon must remember to go on with it after it was killed and
// started again, as a value: proto/journal.proto without the file.
//
// Recorded is what was decided and what the next decision is judged by. Left out is what the agents
// say again by themselves when they come back: nodes that never were members, Ready (a store), a
// member's success unless a decision or a second has passed since.
//
// Points in time mean nothing beyond their clock, which does not survive its machine: those of
// failures and exclusions are kept as the time since or until then. Waiting begins anew, a lease is
// counted from the restart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/budget.h"
#include "rendezvous/quorum/conduct.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// A member that is still here.
struct MemberRecord : Member {
  bool takes_part = true;  // false: it has said Ready since, or waits for a place
};

struct JobRecord {
  Hello founder;  // the job's first Hello: its id and its policy
  Phase phase = Phase::kForming;
  Epoch floor;
  Epoch epoch;
  Epoch highest_epoch;
  std::vector<MemberRecord> members;  // none when closed
  Assignment assignment;              // of `epoch`, without the part that is a node's own
  int epoch_size = 0;
  int succeeded_count = 0;
  MonotonicTime taken_at;  // of the clock that the times in budget and conduct are of
  // How long ago that was when this is read again, by the wall clock: a record is taken when
  // something changes, which may be weeks before the daemon ends. Zero in the daemon that took it.
  absl::Duration age;
  RestartBudget budget;
  Conduct conduct;
  int vain_epochs = 0;
  absl::Duration ran;  // how long the epoch has run, or ran before it was stopped
  Cause cause = Cause::kNone;
  std::string cause_text;
  std::optional<WorkerFailure> failure;
  StopKind stop_kind = StopKind::kAbort;
  std::string stop_why;
  bool last_departure_was_leave = false;
  Outcome outcome = Outcome::kFailed;  // when closed
  std::string why;                     // the last decision's
};

// Whether a job's record has to be written again. Two equal marks: nothing changed.
struct RecordMark {
  // A decision, or what one is judged by: it is on the disk before anybody hears of it.
  struct Decided {
    Phase phase = Phase::kForming;
    Epoch epoch;
    Cause cause = Cause::kNone;
    StopKind stop_kind = StopKind::kAbort;
    int failure_count = 0;
    int64_t conduct_changes = 0;
    friend bool operator==(const Decided&, const Decided&) = default;
  };
  // Only makes a restart smoother: written within a second.
  struct Learnt {
    int members = 0;
    int succeeded = 0;
    friend bool operator==(const Learnt&, const Learnt&) = default;
  };
  Decided decided;
  Learnt learnt;
};

// Changes that have to be written together.
struct RecordChanges {
  std::vector<JobRecord> jobs;
  std::vector<std::string> forgotten;  // ids of jobs that are known no more
};

RecordMark MarkOf(const JobState& state);

// Whether there is anything to remember: a job that had no epoch yet begins anew as well, unless
// its name was used before and its epochs must be above those.
bool IsWorthRecording(const JobState& state);

}  // namespace convene::rendezvous
