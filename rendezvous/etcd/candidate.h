// A daemon's candidacy: its thread waits until no other daemon leads, leads, and keeps the lease.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/leadership.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/journal/tenure.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"

namespace convene::rendezvous::etcd {

// Thread-safe. Its thread is "etcd-lead".
class Candidate {
 public:
  struct Options {
    Place place;
    absl::Duration lease;     // whole seconds; etcd may give more
    std::string name;         // of this daemon, for people
    MonotonicTime answer_by;  // until then etcd must have answered once; or InfiniteFuture()
    // By which this process led before, and leads no more; 0: none. Where it still holds the
    // leader's key, this candidate gives it back.
    int64_t earlier_lease = 0;
    std::function<void()> on_change;  // called without a lock, on the thread
  };
  // `client` outlives it. ResourceExhausted when the system has no thread left.
  static absl::StatusOr<std::unique_ptr<Candidate>> Start(Client* client, Options options);
  // Call it when nothing of this daemon speaks any more. It gives the lease back, so that the next
  // daemon leads at once: a second at most, after the call that is under way (a TTL at most).
  ~Candidate();

  struct State {
    std::shared_ptr<Tenure> tenure;  // none: another daemon leads, or may
    int64_t lease = 0;               // by which it leads
    // Not OK: the candidacy is over. Aborted: this daemon led, and leads no more. Client's errors
    // when etcd did not answer by `answer_by`, or refused the first request.
    absl::Status status;
  };
  State state();

 private:
  Candidate(Client* client, Options options);

  void Run();
  // False: stopping.
  bool SleepUntil(MonotonicTime at);
  absl::Status Perform(const Leadership::Next& next);
  absl::Status Look(MonotonicTime give_up);
  absl::Status Grant(MonotonicTime give_up);
  absl::Status Campaign(MonotonicTime give_up);
  absl::Status KeepAlive(MonotonicTime give_up);
  void Complain(const absl::Status& status);
  void End(absl::Status why);

  Client* const client_;
  const Options options_;
  // Used by the thread alone, and once it has ended.
  Leadership leadership_;
  std::shared_ptr<Tenure> tenure_;  // once it leads
  int64_t other_term_ = 0;          // of the leader that the log has named
  bool was_answered_ = false;
  bool is_doubtful_ = false;  // the last renewal was not proved
  MonotonicTime complains_at_;

  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  State state_ ABSL_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace convene::rendezvous::etcd
