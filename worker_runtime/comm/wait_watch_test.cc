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
  watch.Arm(&sleeper.place(), Clock::Real().Now(), deadline);
  sleeper.Sleep();
  CHECK(Clock::Real().Now() >= deadline);
  CHECK(watch.Disarm(&sleeper.place()));
}

TEST_CASE("a wait gets back the time for which this process may have been stopped") {
  const auto at = [](double seconds) { return MonotonicTime::FromEpoch(absl::Seconds(seconds)); };
  // It began before the look was due, while the look was late, and as the process went on.
  CHECK(WaitWatch::AfterPause(at(14), at(10), at(11), at(17)) == at(20));
  CHECK(WaitWatch::AfterPause(at(15.1), at(11.1), at(11), at(17)) == at(21));
  CHECK(WaitWatch::AfterPause(at(21), at(17), at(11), at(17)) == at(21));
}

TEST_CASE("a nearer deadline overtakes one that is far") {
  WaitWatch watch;
  Sleeper patient, hasty;
  watch.Arm(&patient.place(), Clock::Real().Now(), MonotonicTime::InfiniteFuture());
  watch.Arm(&hasty.place(), Clock::Real().Now(), Clock::Real().Now() + absl::Milliseconds(1));
  hasty.Sleep();
  CHECK(watch.Disarm(&hasty.place()));
  CHECK_FALSE(watch.Disarm(&patient.place()));
}

TEST_CASE("a wait that ended in time is never woken") {
  WaitWatch watch;
  std::atomic<bool> woken = false;
  WaitWatch::Place early = {.wake = [&] { woken = true; }};
  Sleeper later;
  watch.Arm(&early, Clock::Real().Now(), Clock::Real().Now() + absl::Milliseconds(10));
  CHECK_FALSE(watch.Disarm(&early));
  watch.Arm(&later.place(), Clock::Real().Now(), Clock::Real().Now() + absl::Milliseconds(11));
  later.Sleep();
  CHECK_FALSE(woken);
  watch.Disarm(&later.place());
}

}  // namespace
}  // namespace convene::worker
