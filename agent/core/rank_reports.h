// PURE. The part of a heartbeat about each worker, from the workers' progress pages.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/hang_detector.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::agent {

// The means of a step are of the steps between two reports.
class RankReports {
 public:
  // The workers of the epoch before are forgotten.
  void BeginEpoch() { workers_.clear(); }
  // Whether the last report is a second old.
  bool IsDue(MonotonicTime now) const { return now - reported_ >= absl::Seconds(1); }
  // `readings`: by local rank, of the workers that tell. The first kMostRanksTold of them.
  // REQUIRES: IsDue(now).
  std::vector<rendezvous::RankProgress> Report(const std::map<int, WorkerReading>& readings,
                                               MonotonicTime now);

 private:
  struct Worker {
    WorkerReading since;  // what the last steps are counted from
    rendezvous::RankProgress told;
  };

  MonotonicTime reported_;
  std::map<int, Worker> workers_;  // by local rank
};

}  // namespace convene::agent
