// A timer of an EventLoop.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene {

// Runs on CLOCK_MONOTONIC. Lives on the thread of its loop.
class LoopTimer {
 public:
  // `on_time` may destroy the timer.
  LoopTimer(EventLoop& loop, std::function<void()> on_time);
  ~LoopTimer();
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;

  // False when the process had no descriptor to spare: then it never calls.
  bool valid() const { return timer_.valid(); }

  // Calls once `after` from now (at least a nanosecond), then each `period` unless that is zero.
  // Replaces what was set before.
  void Set(absl::Duration after, absl::Duration period = absl::ZeroDuration());
  void Cancel();

 private:
  void OnReady();

  EventLoop& loop_;
  const std::function<void()> on_time_;
  UniqueFd timer_;
};

}  // namespace convene
