// All jobs of a daemon, and the agents of each. No gRPC, no lock, no thread, no clock: the daemon
// (daemon.h) brings those.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/job_record.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// Each with its job's id.
using Incidents = std::vector<std::pair<std::string, IncidentView>>;

// Since they were taken last.
struct IncidentChanges {
  std::set<std::string> replaced;  // ids whose job was over when a new one began
  Incidents incidents;
};

// A closed job's id is free: the next Hello begins a new job under it, whose epochs are above the
// old ones. One kind of Hello begins none: that of an agent that was in an epoch (it has a
// last_epoch) and comes back to a job that succeeded or failed without it. This agent is told the
// outcome, and does not do the work again by itself. The id is also free when no node is in the
// job, or none that was heard within its lease of this daemon's start, and the Hello contradicts
// it.
//
// With recording on, decided changes of jobs are numbered from 1, and each item of an Outbox says
// (`after_change`) which of them must be on the disk before it may leave. Heard, the answer to each
// Heartbeat, waits for nothing. Not thread-safe.
class JobTable {
 public:
  static constexpr size_t kMostJobs = 1024;  // closed ones included
  static constexpr absl::Duration kRemembered =
      absl::Minutes(10);  // how long Status knows a closed job

  // From now on changes are kept for TakeChanges. Once, before anything else.
  void StartRecording() { is_recording_ = true; }
  // A job as an earlier daemon left it; its members' leases begin now. Before the first Join.
  void Restore(MonotonicTime now, const JobRecord& record);
  // The leases of all members that are away begin now.
  void RenewAway(MonotonicTime now);
  // Sets the answer of later Welcomes.
  void set_survives_restart(bool survives_restart);
  // Sets the offset from the monotonic clock to the wall clock, of later events and incidents.
  void set_wall_offset(absl::Duration wall_offset);
  // Sets the daemon's term, which Welcomes tell. Before Restore.
  void set_term(int64_t term) { term_ = term; }

  // The number of the last decided change.
  int64_t last_change() const { return last_change_; }
  // Whether anything was changed, decided or not, since TakeChanges.
  bool has_changes() const { return !changed_.empty(); }
  IncidentChanges TakeIncidents();
  // Of jobs that were restored. See Chronicle::Restore.
  void RestoreIncident(const std::string& job_id, const IncidentView& incident);
  // The incidents of this job, restored, could not be read. The next one's number is above theirs:
  // each is of another epoch of the job.
  void MissIncidents(const JobRecord& record);
  // The jobs that were changed since the last call, as they are now.
  RecordChanges TakeChanges(MonotonicTime now);

  // The daemon is told to end, with the agent's process of this incarnation (0: it is part of
  // none). From now on an epoch is formed only where another agent may go on with it.
  void EndSoon(Incarnation host);

  // A job with an open stream of an agent that may serve in this daemon's place.
  struct Succession {
    HandedOverJob job;
    // JobState::MayHostNext.
    std::vector<MemberId> successors;
    std::vector<MemberId> others;  // the job's other open streams
  };
  // The jobs that can go on when the daemon ends, by job id. Decides nothing.
  std::vector<Succession> HandOver(MonotonicTime now) const;

  // `id` is new. InvalidArgument when the hello is senseless or contradicts its job;
  // ResourceExhausted when there are too many jobs or nodes. The caller ends the stream with it.
  absl::Status Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
                    Outbox* outbox);
  // An `id` that is in no job (any more) is ignored. A message with another incarnation than the
  // Hello's ends the stream with Aborted.
  void Receive(MonotonicTime now, MemberId id, Incarnation incarnation, Epoch epoch,
               const AgentEvent& event, Outbox* outbox);
  void Disconnect(MonotonicTime now, MemberId id, Outbox* outbox);
  void Tick(MonotonicTime now, Outbox* outbox);
  // Nothing happens by itself before this.
  MonotonicTime wake_at() const { return wake_at_; }

  // By job id. `job_id` "": all, without events and incidents. NotFound names the id.
  absl::StatusOr<std::vector<JobView>> Views(MonotonicTime now, const std::string& job_id) const;
  // An agent of a job whose stream is open.
  struct LogSource {
    MemberId id;
    LogNode node;
  };
  // The agents of one job, in no order. NotFound names the known jobs; FailedPrecondition, when the
  // job is over, names the place of its log files.
  absl::StatusOr<std::vector<LogSource>> LogSources(MonotonicTime now,
                                                    const std::string& job_id) const;
  // nullopt when `id` is in no job (any more).
  std::optional<LogSource> LogSourceOf(MemberId id) const;

  // The jobs that are not over, have a node, and have begun an epoch. Nodes that wait for a first
  // epoch have no work to lose, and dial again until another daemon serves or their patience ends.
  // The missing node may be the next command of this very machine, which begins only when this
  // process has ended.
  std::vector<ServedJob> ServedJobs() const;
  // nullptr when no job of this id is known. Valid until the next call that is not const.
  const Job* Find(const std::string& job_id) const;

 private:
  struct Entry {
    Job job;
    RecordMark mark = {};     // of the state that changes were last looked for in
    int64_t last_change = 0;  // decided
    std::map<std::string, std::string> log_directories = {};  // by host; of the first few nodes
  };
  struct Membership {
    Entry* entry;
    Incarnation incarnation;
    bool publishes_logs = false;
  };
  // Whether the agent of this stream may go on in the daemon's place.
  static bool MaySucceed(MemberId id, const Membership& membership);
  // A finished job that this hello's agent still belongs to; nullptr when there is none.
  const Entry* FinishedJobOf(const Hello& hello) const;
  absl::StatusOr<Entry*> JobFor(MonotonicTime now, const Hello& hello);
  bool MakeRoom();
  std::map<std::string, Entry>::iterator Forget(std::map<std::string, Entry>::iterator entry);
  // After a call to the job of `entry` that appended to `outbox` from `first_new` on.
  void Settle(Entry& entry, Outbox* outbox, size_t first_new);
  void NoteChange(Entry& entry);
  static void NoteLogDirectory(const Hello& hello, Entry* entry);

  bool is_recording_ = false;
  bool survives_restart_ = false;
  int64_t term_ = 0;
  std::optional<Incarnation> ends_with_;  // EndSoon's
  absl::Duration wall_offset_;
  int64_t last_change_ = 0;
  std::set<std::string> changed_;                        // ids
  std::set<std::string> replaced_;                       // ids of IncidentChanges
  MemberId last_away_id_ = MemberId(int64_t{-1} << 62);  // identities of streams are positive
  std::map<std::string, Entry> jobs_;
  std::unordered_map<int64_t, Membership> members_;  // by MemberId
  MonotonicTime wake_at_ = MonotonicTime::InfiniteFuture();
};

}  // namespace convene::rendezvous
