// Wakes waits whose time is over. Gloo's own timeout closes every connection of the process, so
// that everybody would blame everybody; this one ends a single wait.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"

namespace convene::worker {

// Thread-safe. One thread, "comm deadline", which looks once a second, and at the nearest deadline
// it knows of: arming a wait costs a lock, and wakes nobody unless its deadline is nearer than all
// before it. While this process was stopped (`scontrol suspend`), its peers were as well, or are
// judged by others: no wait is over because of that time.
class WaitWatch {
 public:
  // PURE. The new deadline of a wait that began at `since`, where a look that was due at `due` came
  // at `now`, so late that this process did not run. The wait gets back all time since `due` of
  // which it was a part: nobody knows when in that time the process was stopped.
  static MonotonicTime AfterPause(MonotonicTime deadline, MonotonicTime since, MonotonicTime due,
                                  MonotonicTime now) {
    return deadline + (now - std::max(due, since));
  }

  // One waiting place, used by one thread at a time. `wake` is called at most once per Arm, by the
  // watch's thread with the watch's lock held: it must be short and must not call the watch.
  struct Place {
    std::function<void()> wake;
  };

  WaitWatch();
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  // `since`: when the call began that waits. It may have waited before, or been stopped before it
  // waits here. `place` lives until Disarm. REQUIRES: not armed.
  void Arm(Place* place, MonotonicTime since, MonotonicTime deadline);
  // Returns whether it was woken: then the deadline has passed. After it returned, `wake` does not
  // run any more.
  bool Disarm(Place* place);

 private:
  struct Armed {
    Place* place;
    MonotonicTime since;
    MonotonicTime deadline;
  };

  void Run();
  // As in AfterPause.
  struct Pause {
    MonotonicTime due;
    MonotonicTime now;
  };

  // A look that was due at `due` comes at `now`.
  void BridgePause(MonotonicTime due, MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::vector<Armed> armed_ ABSL_GUARDED_BY(mutex_);
  std::deque<Pause> pauses_ ABSL_GUARDED_BY(mutex_);  // the latest few
  MonotonicTime next_look_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;  // last: starts when all else stands
};

}  // namespace convene::worker
