#include "tools/base/loop_timer.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tools/base/check.h"

namespace convene {

LoopTimer::LoopTimer(EventLoop& loop, std::function<void()> on_time)
    : loop_(loop),
      on_time_(std::move(on_time)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!timer_.valid()) return;
  if (!loop_.Add(timer_.get(), EPOLLIN, [this](uint32_t) { OnReady(); }).ok()) timer_.Reset();
}

LoopTimer::~LoopTimer() {
  if (timer_.valid()) loop_.Forget(timer_.get());
}

void LoopTimer::Set(absl::Duration after, absl::Duration period) {
  if (!timer_.valid()) return;
  itimerspec times = {};
  times.it_value = absl::ToTimespec(std::max(after, absl::Nanoseconds(1)));
  times.it_interval = absl::ToTimespec(period);
  CONVENE_CHECK(timerfd_settime(timer_.get(), 0, &times, nullptr) == 0);
}

void LoopTimer::Cancel() {
  if (!timer_.valid()) return;
  const itimerspec never = {};
  CONVENE_CHECK(timerfd_settime(timer_.get(), 0, &never, nullptr) == 0);
}

void LoopTimer::OnReady() {
  uint64_t times = 0;
  // Nothing to read: it was set anew within this round of the loop.
  if (read(timer_.get(), &times, sizeof(times)) != sizeof(times)) return;
  const std::function<void()> on_time = on_time_;  // A copy: it may destroy this.
  on_time();
}

}  // namespace convene
