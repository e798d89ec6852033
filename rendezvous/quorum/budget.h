// PURE. Counts a job's failures. Durable: a restarted daemon must know the counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// Counts failures, never changes of membership. Plain data; not thread-safe.
struct RestartBudget {
  // More restarts than this cannot be allowed within a window (decide.cc refuses it).
  static constexpr size_t kMostRemembered = 65536;

  int failure_count = 0;                 // since the job began; never falls
  std::vector<MonotonicTime> failed_at;  // the last kMostRemembered of them, oldest first
  std::optional<int64_t> highest_step;   // that any node told of; none: no node tells its step
  bool advanced = false;                 // highest_step rose since the last failure
  // Failures in a row, up to the last one, without a new highest step between them. 0 while no node
  // tells its step.
  int stuck_count = 0;

  void Progress(int64_t step);
  void Fail(MonotonicTime now);
  // Failures not older than `window`; zero: all.
  int CountedAt(MonotonicTime now, absl::Duration window) const;
};

}  // namespace convene::rendezvous
