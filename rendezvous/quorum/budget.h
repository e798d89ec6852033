// PURE. The cost of a job's failures so far. Durable: a restarted daemon must know it.
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
  std::optional<int64_t> highest_step;   // that any node told of; none: nobody tells
  bool advanced = false;                 // highest_step rose since the last failure
  // Failures in a row, up to the last one, before which no new highest step was told since the
  // failure before. 0 while nobody tells.
  int stuck_count = 0;

  void Progress(int64_t step);
  void Fail(MonotonicTime now);
  // Failures not older than `window`; zero: all.
  int CountedAt(MonotonicTime now, absl::Duration window) const;

  friend bool operator==(const RestartBudget&, const RestartBudget&) = default;
};

}  // namespace convene::rendezvous
