// The daemon's counters, for /metrics.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace convene::rendezvous {

// How many took how long.
struct LatencyHistogram {
  // Upper bounds of the buckets; above the last one there is another.
  static constexpr std::array<double, 12> kBoundsSeconds = {
      0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25};

  void Observe(absl::Duration latency) {
    const double seconds = absl::ToDoubleSeconds(latency);
    const auto bucket = std::lower_bound(kBoundsSeconds.begin(), kBoundsSeconds.end(), seconds);
    ++counts[static_cast<size_t>(bucket - kBoundsSeconds.begin())];
    sum_seconds += seconds;
  }

  std::array<int64_t, kBoundsSeconds.size() + 1> counts = {};  // of each bucket by itself
  double sum_seconds = 0;
};

// Since the daemon's start, but for streams_open.
struct DaemonCounters {
  int64_t streams_open = 0;
  int64_t joins = 0;          // Hellos taken
  int64_t joins_refused = 0;  // Hellos not taken
  int64_t heartbeats = 0;
  int64_t epochs = 0;  // begun
  // From the arrival of an agent's message until every answer it causes is queued for its agent;
  // the wait for the daemon's lock is in it. Only messages that cause an answer count.
  LatencyHistogram decisions;
};

}  // namespace convene::rendezvous
