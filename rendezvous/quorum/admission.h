// PURE. Late nodes are let into a running job together: one stop for all that arrive within a
// while, not one stop for each.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// The arrival times of the nodes that wait for a seat. Plain data; not thread-safe.
struct Admission {
  // A stream of arrivals puts the admission off no further than this many quiet times.
  static constexpr int kMostQuietTimes = 4;

  std::optional<MonotonicTime> first_arrival;  // none: nobody waits
  MonotonicTime latest_arrival;

  void Arrive(MonotonicTime now) {
    if (!first_arrival.has_value()) first_arrival = now;
    latest_arrival = now;
  }
  void Clear() { *this = Admission(); }
  // The time at which no node has arrived for `quiet`. REQUIRES: a node waits.
  MonotonicTime DueAt(absl::Duration quiet) const {
    return std::min(latest_arrival + quiet, *first_arrival + kMostQuietTimes * quiet);
  }
};

}  // namespace convene::rendezvous
