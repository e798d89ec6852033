// PURE. The record of a job that a daemon needs to go on with it after a kill and a restart, or in
// another daemon's place, as a value: proto/journal.proto without the file.
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
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/budget.h"
#include "rendezvous/quorum/conduct.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// A member that is still here.
struct MemberRecord : Member {
  bool takes_part = true;  // false: it has said Ready since, or waits for a place
};

struct JobRecord : JobFacts {
  Hello founder;                      // the job's first Hello: its id and its policy
  std::vector<MemberRecord> members;  // none when closed
  Assignment assignment;              // of `epoch`, without the part that is a node's own
  MonotonicTime taken_at;             // when it was taken, by the clock of budget and conduct
  // The record's age, by the wall clock, when it is read again: it is taken when something changes,
  // which may be weeks before the daemon ends. Zero in the daemon that took it.
  absl::Duration age;
  absl::Duration ran;  // how long the epoch has run, or ran before it was stopped
  std::string stop_why;
  std::string why;  // the last decision's
};

// A job as a daemon without a journal leaves it to another one (HandOver in messages.h).
struct HandedOverJob {
  JobRecord record;
  std::vector<IncidentView> incidents;  // by number
};

// Tells whether a job's record has to be written again: two equal marks mean that nothing changed.
struct RecordMark {
  // Decisions, and the facts by which they are made: they are on the disk before any agent hears of
  // them. The last two count failures and changes of conduct.
  std::tuple<Phase, Epoch, Cause, StopKind, int, int64_t> decided;
  // Facts that only make a restart smoother: they are written within a second. Numbers of members
  // and of those that succeeded.
  std::pair<int, int> learnt;
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
