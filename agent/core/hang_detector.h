// PURE. Tells a worker that hangs from one that is slow, by what the workers write on their
// progress pages.
//
// A worker is silent from its last change of step or phase on. It is overdue when its silence is
// longer than the limit of what it does:
//
//   before its first finished step  limits.startup, counted from the epoch's start; automatic: as
//                                   for what is not known yet
//   in phase "step"                 limits.step        automatic: from the last 128 steps, once 20
//                                   were seen, and three in this epoch:
//                                   max(floor, 10 x the median, 3 x the longest)
//   in phase "checkpoint"           limits.checkpoint  automatic: as the next
//   in any other phase              automatic alone: max(10 min, 10 x the longest of the last stays
//                                   in it), once three were seen
//
//   what is not known yet           automatic alone: max(1 h, 10 x the longest seen)
//
// The floor is 30 s for a worker that promises to tell every phase, else 15 min: it may be saving
// without a word. No limit (off): never overdue. Of steps that are quicker than the looks, the mean
// between two looks counts as one. What was learnt is kept over epochs of one world size.
//
// Workers wait for each other, so that soon all are silent. Those furthest behind (lowest step) are
// to blame, and as long as one of them is within its limit (it saves, the others wait for it),
// nobody hangs. Where all stand alike, the one that is waited for may be on another node: then this
// node gives that one's agent a little time to speak first.
//
// Only this machine's monotonic clock counts. A gap between two looks (the agent was stopped, the
// machine slept) is added to everybody's patience.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/options.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::agent {

// The content of a worker's page.
struct WorkerReading {
  int64_t step = 0;
  std::string phase;
  MonotonicTime changed_at;  // as the worker says; believed as far as it is possible
  bool tells_every_phase = false;
  bool dumps_on_signal = false;
};

struct HangVerdict {
  std::vector<int> local_ranks;  // all that are furthest behind, the one to blame first
  std::string why;               // one line, about the first and how the others stand
};

class HangDetector {
 public:
  // `look_interval`: how often Look is going to be called.
  HangDetector(const HangLimits& limits, absl::Duration look_interval)
      : limits_(limits), look_interval_(look_interval) {}

  // Workers start now; those of the epoch before are forgotten.
  void BeginEpoch(int first_global_rank, int world_size, MonotonicTime now);
  // A worker has ended.
  void Forget(int local_rank) { workers_.erase(local_rank); }

  // The pages as they are now, by local rank; workers that never told are left out, and one whose
  // page cannot be read at the moment counts as unchanged. No verdict: nobody hangs. Otherwise it
  // is the same until something changes.
  std::optional<HangVerdict> Look(const std::map<int, WorkerReading>& readings, MonotonicTime now);

  // Of the slowest worker; none: no worker tells.
  std::optional<rendezvous::WorkerProgress> Progress(MonotonicTime now) const;

  // Once: the line for the log when the automatic limit of a step is first known; else "".
  std::string TakeNews();

 private:
  struct Worker {
    WorkerReading last;
    MonotonicTime since;          // silent since
    bool is_sample_good = false;  // since the last finished step: no gap, no other phase
    bool has_risen = false;       // its step, in this epoch
    int64_t finished = 0;         // looks in this epoch that found steps finished
    std::deque<std::pair<MonotonicTime, int64_t>> recent;  // finished steps, for the rate
  };
  // Of steps, or of stays in a phase.
  struct Learnt {
    std::deque<absl::Duration> durations;  // the last ones
    int64_t count = 0;
  };
  struct Limit {
    absl::Duration duration = absl::InfiniteDuration();
    std::string why;  // "limit 300 s, automatic: 10 x the median 31 s"
  };

  void Update(int local_rank, const WorkerReading& reading, bool after_gap, MonotonicTime now);
  void Learn(int local_rank, const std::string& phase, absl::Duration duration);
  void BridgeGap(absl::Duration gap, MonotonicTime now);
  void NoteNews();
  Limit LimitOf(int local_rank, const Worker& worker) const;
  Limit AutomaticLimit(int local_rank, const Worker& worker) const;
  Limit UnseenLimit(int local_rank, const Worker& worker) const;
  bool IsOverdue(int local_rank, const Worker& worker, bool all_alike, MonotonicTime now) const;
  absl::Duration Silence(const Worker& worker, MonotonicTime now) const;
  std::string Why(const std::vector<int>& local_ranks, bool all_alike, MonotonicTime now) const;

  const HangLimits limits_;
  const absl::Duration look_interval_;
  int first_global_rank_ = 0;
  int world_size_ = 0;
  MonotonicTime started_;
  MonotonicTime last_look_;
  std::map<int, Worker> workers_;                        // those that tell, by local rank
  std::map<int, std::map<std::string, Learnt>> learnt_;  // by local rank and phase
  std::string news_;
  bool has_had_news_ = false;
};

}  // namespace convene::agent
