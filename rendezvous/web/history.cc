#include "rendezvous/web/history.h"

#include <algorithm>

#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPause = absl::Seconds(2);
// So many times as long as looking took, the thread rests.
constexpr int kRest = 1000;
constexpr absl::Duration kLongestPause = absl::Seconds(60);

}  // namespace

absl::Status History::Start() {
  CONVENE_ASSIGN_OR_RETURN(thread_, Thread::Start("web-history", [this] { LookUntilStopped(); }));
  return absl::OkStatus();
}

void History::Stop() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    stopped_.SignalAll();
  }
  if (thread_.joinable()) thread_.Join();
}

void History::Look(absl::Time wall) {
  const absl::StatusOr<std::vector<JobView>> views = source_();
  if (!views.ok()) return;  // the daemon stops
  MutexLock lock(&mutex_);
  curves_.Add(clock_->Now(), wall, *views);
}

void History::Read(const std::string& job_id, absl::FunctionRef<void(const JobCurves::Job*)> use) {
  MutexLock lock(&mutex_);
  use(curves_.Find(job_id));
}

void History::LookUntilStopped() {
  for (;;) {
    const MonotonicTime begin = clock_->Now();
    Look(WallNow());
    chore_();
    const absl::Duration took = clock_->Now() - begin;
    const MonotonicTime next = clock_->Now() + std::clamp(kRest * took, kPause, kLongestPause);
    MutexLock lock(&mutex_);
    while (!is_stopping_ && clock_->Now() < next) {
      stopped_.WaitFor(&mutex_, next - clock_->Now());
    }
    if (is_stopping_) return;
  }
}

}  // namespace convene::rendezvous
