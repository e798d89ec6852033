// The daemon without its wire: the table of jobs under one lock, the thread that makes time pass,
// and the thread that writes the journal.
//
// Remembering. A decision's messages leave for the agents only when the decision is in the journal.
// The lock is not held meanwhile: the items wait in `held_`, all other work goes on, and decisions
// made until the disk is done are written together next. A decision so costs one fdatasync (at most
// two, when one was under way), whatever its number of agents; a job that decides nothing, and the
// answers to heartbeats, do not wait for the disk. Without a journal nothing is held.
//
// A disk that refuses (full, broken) stops no training: the log says so, held items leave, Welcomes
// say from then on that workers would not survive a restart, and writing is tried again with each
// change and every kRetry. A disk that hangs holds the decisions back: agents keep their workers
// and their leases.
//
// Where several daemons share a memory (Journal::Opened::tenure) the daemon fails closed: what
// could not be stored is held, and once the tenure may be over nothing leaves at all, not even the
// answer to a heartbeat. A daemon that decides nothing looks at the memory every kBetweenLooks:
// another one may lead.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/attend/daemon_counters.h"
#include "rendezvous/attend/heap_trim.h"
#include "rendezvous/attend/job_table.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/logs/log_agents.h"
#include "rendezvous/quorum/job.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {

// The daemon's end of one agent's stream.
class StreamSink {
 public:
  using Item = decltype(Outbox::Item::what);
  virtual ~StreamSink() = default;
  // Appends `item`. Called under the daemon's lock, so that every stream sees events in their
  // order: must not block and not call back.
  virtual void Queue(Item item) = 0;
  // Begins to send queued items. Called without a lock, from any thread.
  virtual void Flush() = 0;
};

// Thread-safe. Its thread "rdzv-tick" sleeps until the earliest deadline of all jobs; with a
// `clock` of a test it looks at the time only after other events. Its thread "rdzv-journal", if
// there is a journal, is the only one that touches the journal.
class Daemon final : public LogAgents {
 public:
  // `quiet`: what agents tell, too, is logged at debug only. `memory`: an earlier daemon's records
  // and the open journal; none: nothing is remembered. `wall_now`: of events and incidents; tests
  // have their own.
  Daemon(Clock* clock, bool quiet, std::optional<Journal::Opened> memory = std::nullopt,
         absl::Time (*wall_now)() = &WallNow);
  // REQUIRES: Shutdown() has returned, if Start() was called.
  ~Daemon() override = default;

  // Goes on with a job that another daemon has handed over, HandOver::state. Once, before Start.
  // DataLoss when it makes no sense; the daemon then knows nothing of it.
  absl::Status TakeOver(const std::string& state);

  // Starts its threads; once, before the first stream. ResourceExhausted when the system has no
  // thread left; then call Shutdown().
  absl::Status Start();

  // Call it when the port takes connections, and not before: the leases of the members that an
  // earlier daemon left begin now. An agent whose connections were refused counts its lease from
  // its last refusal, so the daemon must not count from an earlier moment.
  void BeginServing();

  // A new stream. A stream that does not say Hello within 10 s is ended with DeadlineExceeded.
  // After Shutdown every new stream is ended at once.
  MemberId Open(std::shared_ptr<StreamSink> sink);
  void Join(MemberId id, Incarnation incarnation, const Hello& hello);
  void Receive(MemberId id, Incarnation incarnation, Epoch epoch, const AgentEvent& event);
  // Ends a stream whose agent is gone or broke the protocol. The sink is not called again.
  void Disconnect(MemberId id);

  // Aborted once the tenure may be over.
  absl::StatusOr<std::vector<JobView>> Views(const std::string& job_id);
  DaemonCounters Counters();
  // See JobTable.
  std::vector<ServedJob> ServedJobs();

  absl::StatusOr<LogStart> WatchLogs(WatchId watch, const LogRequest& request) override;
  void UnwatchLogs(WatchId watch) override;
  // Called without a lock, from any thread, when the run of a watch is over. Set it before the
  // first WatchLogs.
  using OnRunEnded = std::function<void(WatchId, const RunEnded&)>;
  void set_on_run_ended(OnRunEnded on_run_ended) { on_run_ended_ = std::move(on_run_ended); }

  // The process of this agent is told to end, and the daemon with it: JobTable::EndSoon.
  void EndSoon(Incarnation host);

  // The process that the daemon is part of, for agents that lose it: "the command of run "a" on
  // node0". Set it before Start.
  void set_served_by(std::string served_by) { served_by_ = std::move(served_by); }

  // Each other run's agent is refused with FailedPrecondition, which names both runs; "": none is.
  // Set it before Start.
  void set_only_run(std::string only_run) { only_run_ = std::move(only_run); }

  // Ends all streams with Unavailable and joins the threads. Call it once. The end of its stream
  // costs no node its place in the journal then. Without a journal, each job that has an agent
  // which may serve in its place is handed over to it (HandOver in proto/rendezvous.proto): nothing
  // is decided after that.
  void Shutdown();

 private:
  // Work that an event leaves for the time after the lock's release: streams and log may be slow.
  struct Aftermath {
    std::vector<std::shared_ptr<StreamSink>> sinks;  // to flush
    std::vector<Outbox::LogLine> log;
    std::vector<std::pair<WatchId, RunEnded>> ended_watches;
  };

  absl::Status Stopping() const;
  absl::Status CheckRun(const std::string& job_id) const;
  // Before what may be an event or an incident: the wall clock may have been set, and these are to
  // have the times that other logs have.
  void FollowWallClock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A job of an earlier daemon, with its incidents by number, or why they are not known.
  void Restore(const JobRecord& record, absl::StatusOr<std::vector<IncidentView>> incidents)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues HandOver for every stream of the jobs that have a successor.
  void HandOverJobs(Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickUntilShutdown();
  void CountDecision(MonotonicTime arrived, const Aftermath& aftermath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSilentStreams(MonotonicTime now, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MonotonicTime NextWakeUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues the items, or holds them.
  Aftermath Deliver(Outbox outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether no other daemon can lead yet.
  bool MaySpeak() const;
  // Drops the item when the tenure may be over.
  void Queue(Outbox::Item item, Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues items that waited for changes that are written now.
  Aftermath Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Queues "publish your lines" for an agent, if it has that capability.
  void AskForLogs(WatchId watch, const LogRequest& request, const JobTable::LogSource& source,
                  Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same for an agent that has just joined, for every watch of its job.
  void AskForLogs(MemberId id, const std::string& job_id, Aftermath* aftermath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatches(Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RecordUntilShutdown();
  // The next work of the journal's thread. kEnd: the daemon shuts down, and nothing is left to
  // write.
  enum class Errand { kWrite, kLook, kEnd };
  Errand AwaitErrand() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The time after which a journal that is not current is written again.
  absl::Duration RetryDelay() const;
  // Runs on the journal's thread.
  void Write(const RecordChanges& changes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this daemon still leads, where nothing is written that would tell.
  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  void Complain(const absl::Status& status) const;
  // The same for reports of incidents, which nothing waits for.
  void WriteReports() ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetReports() ABSL_LOCKS_EXCLUDED(mutex_);
  void ComplainOfReports(const absl::Status& status);
  void Finish(const Aftermath& aftermath) const ABSL_LOCKS_EXCLUDED(mutex_);

  Clock* const clock_;
  absl::Time (*const wall_now_)();
  const bool quiet_;
  const std::unique_ptr<Journal> journal_;  // may be null
  const std::shared_ptr<Tenure> tenure_;    // may be null
  OnRunEnded on_run_ended_;                 // may be null
  std::string served_by_;
  std::string only_run_;

  Mutex mutex_;
  CondVar woken_;  // the ticker: an earlier deadline, or shutdown
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // From the clock's time to the time since 1970.
  absl::Duration wall_offset_ ABSL_GUARDED_BY(mutex_);
  MemberId last_id_ ABSL_GUARDED_BY(mutex_);
  JobTable table_ ABSL_GUARDED_BY(mutex_);
  DaemonCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int64_t, std::shared_ptr<StreamSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  HeapTrim heap_trim_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, MonotonicTime> before_hello_ ABSL_GUARDED_BY(mutex_);  // until when
  std::map<WatchId, LogRequest> log_watches_ ABSL_GUARDED_BY(mutex_);       // of runs not over
  MonotonicTime sleeps_until_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();

  CondVar changed_;  // the journal's thread: something to write, or shutdown
  int64_t written_change_ ABSL_GUARDED_BY(mutex_) = 0;  // no item waits for it or one before
  std::map<MemberId, std::deque<Outbox::Item>> held_ ABSL_GUARDED_BY(mutex_);

  // Used by the journal's thread alone.
  MonotonicTime wrote_at_;
  MonotonicTime looked_at_;
  MonotonicTime complained_at_;
  MonotonicTime complains_of_reports_at_;
  // Reports by job and number that wait for the decisions beside them, and ids of jobs whose
  // reports the shelf has still to forget.
  std::map<std::string, std::map<int64_t, IncidentView>> reports_;
  std::set<std::string> forgotten_;

  Thread ticker_;
  Thread recorder_;
};

}  // namespace convene::rendezvous
