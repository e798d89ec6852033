#include "worker_runtime/comm/wait_watch.h"

#include <algorithm>

#include "absl/time/time.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kTick = absl::Seconds(1);
// A tick that comes so much too late means that this process did not run.
constexpr absl::Duration kPaused = absl::Seconds(1);

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

void WaitWatch::Arm(Place* place, MonotonicTime deadline) {
  MutexLock lock(&mutex_);
  armed_.push_back({place, deadline, Clock::Real().Now()});
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
    // A wait that began after the pause has its whole time.
    if (armed.armed_at <= due) armed.deadline = armed.deadline + (now - due);
    next_look_ = std::min(next_look_, armed.deadline);
  }
}

void WaitWatch::Run() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    const MonotonicTime now = Clock::Real().Now();
    if (now < next_look_) {
      // A day at most: an infinite duration does not fit into the condition variable's clock.
      const absl::Duration wait = next_look_ == MonotonicTime::InfiniteFuture()
                                      ? absl::Hours(24)
                                      : std::min(next_look_ - now, kTick);
      changed_.WaitFor(&mutex_, wait);
      BridgePause(now + wait, Clock::Real().Now());
      continue;
    }
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
