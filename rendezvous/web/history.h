// The thread that looks at the jobs every few seconds, so that a page which is opened late still
// shows their curves from the beginning.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/web/curves.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {

// Thread-safe.
class History {
 public:
  // The state of all jobs; it outlives the thread.
  using Source = std::function<absl::StatusOr<std::vector<JobView>>()>;

  // `chore`: called after each look of the thread, for what has to be done without any request.
  History(Source source, std::function<void()> chore, Clock* clock)
      : source_(std::move(source)), chore_(std::move(chore)), clock_(clock) {}
  ~History() { Stop(); }
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Begins to look, from the thread "web-history": every 2 s, and more rarely where looking takes
  // more than a thousandth of that time. At most once. ResourceExhausted when the system has no
  // thread left: then there are no curves, and all else works.
  absl::Status Start();
  // Ends the thread; may be called at any time, more than once.
  void Stop();
  // Looks once. `wall`: the moment for people.
  void Look(absl::Time wall);

  // Calls `use` with the job's curves, or with null when there are none yet. `use` must not call
  // back.
  void Read(const std::string& job_id, absl::FunctionRef<void(const JobCurves::Job*)> use);

 private:
  void LookUntilStopped();

  const Source source_;
  const std::function<void()> chore_;
  Clock* const clock_;

  Mutex mutex_;
  CondVar stopped_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  JobCurves curves_ ABSL_GUARDED_BY(mutex_);

  Thread thread_;
};

}  // namespace convene::rendezvous
