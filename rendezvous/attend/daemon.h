// The daemon without its wire: the table of jobs under one lock, the thread that makes time pass,
// and the thread that writes the journal.
//
// Remembering. A decision's words to the agents leave only when the decision is in the journal.
// The lock is not held meanwhile: the items wait in `held_`, everything else goes on, and what is
// decided until the disk is done is written together next. A decision so costs one fdatasync (at
// most two, when one was under way), whatever its size in agents; a job that decides nothing, and
// the answers to heartbeats, wait for nobody's disk. Without a journal nothing is held.
//
// A disk that refuses (full, broken) stops nobody's training: the log says so, what was held
// leaves, Welcomes say from then on that a restart would not be survived, and writing is tried
// again with each change and every kRetry. A disk that hangs holds the decisions back: agents keep
// their workers, and their leases, as they are.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  // Puts `item` behind those before it. Called under the daemon's lock, so that every stream sees
  // events in the order they happened: must not block and not call back.
  virtual void Queue(Item item) = 0;
  // Begins to send what is queued. Called without a lock, from any thread.
  virtual void Flush() = 0;
};

// Thread-safe. Its thread "rdzv-tick" sleeps until the earliest deadline of all jobs; a `clock`
// that is not the real one is looked at when something else happens. Its thread "rdzv-journal", if
// there is a journal, is the only one that touches it.
class Daemon final : public LogAgents {
 public:
  // `quiet`: nothing is logged above debug. `memory`: what an earlier daemon left, and where to
  // write; none: nothing is remembered.
  Daemon(Clock* clock, bool quiet, std::optional<Journal::Opened> memory = std::nullopt);
  // REQUIRES: Shutdown() has returned, if Start() was called.
  ~Daemon() override = default;

  // Starts its threads; once, before the first stream. ResourceExhausted when the system has no
  // thread left; then call Shutdown().
  absl::Status Start();

  // Connections are no longer refused from a moment before this on: the leases of the members that
  // an earlier daemon left begin now. An agent that was refused counts its lease from there, so
  // they must not begin earlier.
  void BeginServing();

  // A new stream. A stream that does not say Hello within 10 s is ended with DeadlineExceeded.
  // After Shutdown every new stream is ended at once.
  MemberId Open(std::shared_ptr<StreamSink> sink);
  void Join(MemberId id, Incarnation incarnation, const Hello& hello);
  void Receive(MemberId id, Incarnation incarnation, Epoch epoch, const AgentEvent& event);
  // The agent's side is gone, or broke the protocol. The sink is not called again.
  void Disconnect(MemberId id);

  absl::StatusOr<std::vector<JobView>> Views(const std::string& job_id);
  DaemonCounters Counters();
  // As JobTable's.
  std::vector<std::string> ServedJobs();

  absl::StatusOr<LogStart> WatchLogs(WatchId watch, const LogRequest& request) override;
  void UnwatchLogs(WatchId watch) override;
  // Called without a lock, from any thread, when the run of a watch is over. Set it before the
  // first WatchLogs.
  using OnRunEnded = std::function<void(WatchId, const RunEnded&)>;
  void set_on_run_ended(OnRunEnded on_run_ended) { on_run_ended_ = std::move(on_run_ended); }

  // Ends all streams with Unavailable and joins the threads. Once. That streams end now costs no
  // node its place in the journal.
  void Shutdown();

 private:
  // The work that an event leaves for after the lock is released: streams and log may be slow.
  struct Aftermath {
    std::vector<std::shared_ptr<StreamSink>> sinks;  // to flush
    std::vector<Outbox::LogLine> log;
    std::vector<std::pair<WatchId, RunEnded>> ended_watches;
  };

  void TickUntilShutdown();
  void CountDecision(MonotonicTime arrived, const Aftermath& aftermath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSilentStreams(MonotonicTime now, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MonotonicTime NextWakeUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues the items, or holds them.
  Aftermath Deliver(Outbox outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(Outbox::Item item, Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues what waited for changes that are written now.
  Aftermath Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Puts "publish your lines" behind what is queued for an agent, if it knows how.
  void AskForLogs(WatchId watch, const LogRequest& request, const JobTable::LogSource& source,
                  Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same for an agent that has just joined, and every watch of its job.
  void AskForLogs(MemberId id, const std::string& job_id, Aftermath* aftermath)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatches(Aftermath* aftermath) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RecordUntilShutdown();
  // False: shut down, and nothing is left to write.
  bool AwaitChanges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On the journal's thread.
  void Write(const RecordChanges& changes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(const Aftermath& aftermath) const ABSL_LOCKS_EXCLUDED(mutex_);

  Clock* const clock_;
  const bool quiet_;
  const std::unique_ptr<Journal> journal_;  // may be null
  OnRunEnded on_run_ended_;                 // may be null

  Mutex mutex_;
  CondVar woken_;  // the ticker: an earlier deadline, or shutdown
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
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

  // The journal's thread alone.
  MonotonicTime wrote_at_;
  MonotonicTime complained_at_;

  Thread ticker_;
  Thread recorder_;
};

}  // namespace convene::rendezvous
