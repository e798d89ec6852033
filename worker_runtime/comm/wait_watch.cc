#include "worker_runtime/comm/wait_watch.h"

#include <algorithm>

#include "absl/time/time.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);
// A tick that comes so much too late means that this process did not run.
constexpr absl::Duration kPaused = absl::Seconds(1);
// A call that lives through more pauses than this may end early.
constexpr size_t kPausesKept = 16;

}  // namespace

WaitWatch::WaitWatch() : thread_("comm deadline", [this] { Run(); }) {}

WaitWatch::~WaitWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.Join();
}

void WaitWatch::Arm(Place* place, MonotonicTime since, MonotonicTime deadline) {
  MutexLock lock(&mutex_);
  for (const Pause& pause : pauses_) {
    if (since < pause.now) deadline = AfterPause(deadline, since, pause.due, pause.now);
  }
  armed_.push_back({place, since, deadline});
  if (deadline < next_look_) {
    next_look_ = deadline;
    changed_.SignalAll();
  }
}

bool WaitWatch::Disarm(Place* place) {
  MutexLock lock(&mutex_);
  const auto it = std::find_if(armed_.begin(), armed_.end(),
                               [&](const Armed& armed) { return armed.place == place; });
  // Woken places are no longer in the list.
  if (it == armed_.end()) return true;
  armed_.erase(it);
  return false;
}

void WaitWatch::BridgePause(MonotonicTime due, MonotonicTime now) {
  if (now - due < kPaused) return;
  next_look_ = MonotonicTime::InfiniteFuture();
  for (Armed& armed : armed_) {
    armed.deadline = AfterPause(armed.deadline, armed.since, due, now);
    next_look_ = std::min(next_look_, armed.deadline);
  }
  pauses_.push_back({due, now});
  if (pauses_.size() > kPausesKept) pauses_.pop_front();
}

void WaitWatch::Run() {
  MutexLock lock(&mutex_);
  MonotonicTime due = Clock::Real().Now();  // of the next look, at the latest
  while (!stopping_) {
    const MonotonicTime now = Clock::Real().Now();
    BridgePause(due, now);
    if (now < next_look_) {
      // Also while nothing waits: a call may be between two of its waits, and needs to know.
      const absl::Duration wait = std::min(next_look_ - now, kTick);
      due = now + wait;
      changed_.WaitFor(&mutex_, wait);
      continue;
    }
    due = now;
    next_look_ = MonotonicTime::InfiniteFuture();
    for (size_t i = 0; i < armed_.size();) {
      if (armed_[i].deadline <= now) {
        armed_[i].place->wake();
        armed_.erase(armed_.begin() + i);
      } else {
        next_look_ = std::min(next_look_, armed_[i].deadline);
        ++i;
      }
    }
  }
}

}  // namespace convene::worker
