// PURE. The history of a job: the last events, as the daemon's log has them, and a report
// of each epoch that broke.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/incident.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// Its times are those of the wall clock: UnixEpoch plus the monotonic clock's and the offset. An
// entry keeps its time when the clock is set later, as a line of a log does. Bounded. Not
// thread-safe.
class Chronicle {
 public:
  static constexpr size_t kMostEvents = 256;
  static constexpr size_t kMostIncidents = 32;

  // Of the times of later entries, zero at first: from the monotonic clock to the wall clock.
  void set_wall_offset(absl::Duration wall_offset) { wall_offset_ = wall_offset; }

  void AddEvent(MonotonicTime now, Epoch epoch, std::string kind, const std::string& text);

  // The epoch broke by `cause` on `host`. A later cause of the same epoch takes the place of the
  // earlier one. `places`, `is_unfit`: Incident's.
  void AddIncident(MonotonicTime now, Epoch epoch, const std::string& cause,
                   const std::string& host, std::vector<std::string> places, bool is_unfit = false);
  // A worker of the epoch failed: the cause, or an echo. Ignored without an incident of the epoch.
  void AddFailure(Epoch epoch, WorkerFailure failure, bool is_cause);
  // The daemon's answer to the incidents that have no outcome yet.
  void AddOutcome(const std::string& outcome);
  // As an earlier daemon has stored it. By number, before all others.
  void Restore(const IncidentView& view);
  // Incidents with numbers up to this one may be stored and are not known here: the next one has a
  // number above it.
  void NumberAbove(int64_t number) { last_incident_ = std::max(last_incident_, number); }

  // "; epoch 1 failed otherwise: rank 0 on a: exit code 1: MemoryError": the first failure of each
  // other kind than the one that broke `epoch`, at most three; "": there was none.
  std::string OtherFailures(Epoch epoch) const;

  // The newest last.
  const std::deque<Incident>& incidents() const { return incidents_; }
  // The incidents that were changed since the last call.
  std::vector<IncidentView> TakeChanged();

  // Fills in events and incidents.
  void Describe(JobView* view) const;

 private:
  Incident* Last(Epoch epoch);
  static IncidentView ViewOf(const Incident& incident);
  void Judge(Incident& incident);

  absl::Time TimeOf(MonotonicTime at) const {
    return absl::UnixEpoch() + at.since_epoch() + wall_offset_;
  }

  absl::Duration wall_offset_;
  std::deque<EventView> events_;
  int64_t last_event_ = 0;
  std::deque<Incident> incidents_;
  int64_t last_incident_ = 0;  // the number of the last one that there ever was
  std::set<int64_t> changed_;  // numbers of incidents_
};

}  // namespace convene::rendezvous
