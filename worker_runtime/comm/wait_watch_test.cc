#include "worker_runtime/comm/wait_watch.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::worker {
namespace {

// Blocks its thread until it is woken.
class Sleeper {
 public:
  WaitWatch::Place& place() { return place_; }
  void Sleep() {
    MutexLock lock(&mutex_);
    while (!woken_) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  WaitWatch::Place place_ = {.wake = [this] {
    MutexLock lock(&mutex_);
    woken_ = true;
    changed_.SignalAll();
  }};
};

TEST_CASE("a wait is woken when its deadline passes, not before") {
  WaitWatch watch;
  Sleeper sleeper;
  const MonotonicTime deadline = Clock::Real().Now() + absl::Milliseconds(20);
  watch.Arm(&sleeper.place(), deadline);
  sleeper.Sleep();
  CHECK(Clock::Real().Now() >= deadline);
  CHECK(watch.Disarm(&sleeper.place()));
}

TEST_CASE("a nearer deadline overtakes one that is far") {
  WaitWatch watch;
  Sleeper patient, hasty;
  watch.Arm(&patient.place(), MonotonicTime::InfiniteFuture());
  watch.Arm(&hasty.place(), Clock::Real().Now() + absl::Milliseconds(1));
  hasty.Sleep();
  CHECK(watch.Disarm(&hasty.place()));
  CHECK_FALSE(watch.Disarm(&patient.place()));
}

TEST_CASE("a wait that ended in time is never woken") {
  WaitWatch watch;
  std::atomic<bool> woken = false;
  WaitWatch::Place early = {.wake = [&] { woken = true; }};
  Sleeper later;
  watch.Arm(&early, Clock::Real().Now() + absl::Milliseconds(10));
  CHECK_FALSE(watch.Disarm(&early));
  watch.Arm(&later.place(), Clock::Real().Now() + absl::Milliseconds(11));
  later.Sleep();
  CHECK_FALSE(woken);
  watch.Disarm(&later.place());
}

}  // namespace
}  // namespace convene::worker
