// PURE. The record of a job that a daemon needs to go on with it after a kill and a restart, as a
// value: proto/journal.proto without the file.
//
// The record holds the decisions, and the facts by which the next decision is made. It leaves out
// facts that agents tell again when they come back: nodes that never were members, Ready (a store),
// a member's success unless a decision or a second has passed since.
//
// Points in time mean nothing beyond their clock, which does not survive its machine. So the times
// of failures and exclusions are kept as the time since or until then. Waits begin anew, and a
// lease is counted from the restart.
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
  // The record's age, by the wall clock, when it is read again: it is taken when something changes,
  // which may be weeks before the daemon ends. Zero in the daemon that took it.
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

// Tells whether a job's record has to be written again: two equal marks mean that nothing changed.
struct RecordMark {
  // Decisions, and the facts by which they are made: they are on the disk before any agent hears of
  // them.
  struct Decided {
    Phase phase = Phase::kForming;
    Epoch epoch;
    Cause cause = Cause::kNone;
    StopKind stop_kind = StopKind::kAbort;
    int failure_count = 0;
    int64_t conduct_changes = 0;
    friend bool operator==(const Decided&, const Decided&) = default;
  };
  // Facts that only make a restart smoother: they are written within a second.
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

// Whether there is anything to remember. A job without an epoch may begin anew, unless its name was
// used before: then its epochs must be above the earlier ones.
bool IsWorthRecording(const JobState& state);

}  // namespace convene::rendezvous
