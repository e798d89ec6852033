// The daemon without its wire: the table of jobs under one lock, and the thread that makes time
// pass.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/server/job_table.h"
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

// Thread-safe. Its one thread, "rdzv-tick", sleeps until the earliest deadline of all jobs; a
// `clock` that is not the real one is looked at when something else happens.
class Daemon {
 public:
  // `quiet`: nothing is logged above debug.
  Daemon(Clock* clock, bool quiet);
  // REQUIRES: Shutdown() has returned.
  ~Daemon() = default;

  // A new stream. One that does not say Hello within 10 s is ended with DeadlineExceeded. After
  // Shutdown it is ended at once.
  MemberId Open(std::shared_ptr<StreamSink> sink);
  void Join(MemberId id, Incarnation incarnation, const Hello& hello);
  void Receive(MemberId id, Incarnation incarnation, Epoch epoch, const AgentEvent& event);
  // The agent's side is gone, or broke the protocol. The sink is not called again.
  void Disconnect(MemberId id);

  absl::StatusOr<std::vector<JobView>> Views(const std::string& job_id);

  // Ends all streams with Unavailable and joins the thread. Once.
  void Shutdown();

 private:
  // What an event leaves to do once the lock is released: streams and log may be slow.
  struct Aftermath {
    std::vector<std::shared_ptr<StreamSink>> sinks;  // to flush
    std::vector<Outbox::LogLine> log;
  };

  void TickUntilShutdown();
  void EndSilentStreams(MonotonicTime now, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MonotonicTime NextWakeUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues the items.
  Aftermath Deliver(Outbox outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const Aftermath& aftermath) const ABSL_LOCKS_EXCLUDED(mutex_);

  Clock* const clock_;
  const bool quiet_;

  Mutex mutex_;
  CondVar woken_;  // the ticker: an earlier deadline, or shutdown
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  MemberId last_id_ ABSL_GUARDED_BY(mutex_);
  JobTable table_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int64_t, std::shared_ptr<StreamSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, MonotonicTime> before_hello_ ABSL_GUARDED_BY(mutex_);  // until when
  MonotonicTime sleeps_until_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();

  Thread ticker_;
};

}  // namespace convene::rendezvous
