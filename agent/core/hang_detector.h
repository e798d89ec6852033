// PURE. Tells a worker that hangs from a slow one, by the workers' progress pages.
//
// A worker is silent from its last change of step or phase on. It is overdue when its silence is
// longer than the limit of its phase:
//
//   before its first finished step  limits.startup, counted from the epoch's start; automatic: as
//                                   for what is not known yet
//   in phase "step"                 limits.step        automatic: from the last 128 steps, once 20
//                                   were seen, and three in this epoch:
//                                   max(floor, 10 x the median, 3 x the longest)
//   in phase "checkpoint"           limits.checkpoint  automatic: as in any other phase
//   in any other phase              automatic alone: max(10 min, 10 x the longest of the last stays
//                                   in it), once three were seen
//
//   what is not known yet           automatic alone: max(1 h, 10 x the longest seen)
//
// The floor is 30 s for a worker that promises to tell every phase, else 15 min: it may be saving
// without a word. Without a limit (off) no worker is overdue. When steps are quicker than the
// looks, the mean step between two looks counts as one sample. Learnt times are kept over epochs of
// one world size.
//
// Workers wait for each other, so that soon all are silent. The workers furthest behind (lowest
// step) are to blame; as long as one of them is within its limit (it saves, the others wait for
// it), no worker hangs. Where all stand alike, they may wait for a worker on another node: then
// this node gives that worker's agent a little time to report first.
//
// A worker whose process is stopped (state T) goes on only when somebody lets it, so it is to blame
// before all others, at whatever step. It is overdue by its limit, and without a given one after a
// minute in that state, or the given limit of a step where that is shorter; no other node is given
// time to report first.
//
// A worker may tell for which rank its collective waits. Of workers of the lowest step those are to
// blame that wait for none, though others do. A worker that waits for a rank of another node gives
// that node time to report first; a worker that waits for none is given no such time.
//
// A worker that ended with 0 while others run is named: in a collective they wait for it for ever.
//
// Only this machine's monotonic clock counts. A gap between two looks (the agent was stopped, the
// machine slept) is added to every limit.
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

// Sums since the worker's start; zero where it tells none.
struct WorkerTimes {
  absl::Duration compute;
  absl::Duration wait;
  absl::Duration data;
  absl::Duration checkpoint;
};

// The content of a worker's page.
struct WorkerReading {
  int64_t step = 0;
  std::string phase;
  MonotonicTime changed_at;  // as the worker says; a time that cannot be right is moved into bounds
  bool tells_every_phase = false;
  bool dumps_on_signal = false;
  // A fact that the worker does not tell is 0.
  WorkerTimes times;
  int64_t tokens = 0;  // the sum
  double loss = 0;
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;
  int place = 0;
  double mfu = 0;
  int pid = 0;  // of the process that tells, as it sees itself
  // The rank that a collective of this worker waits for, of all ranks; -1: none waits. Only of a
  // worker that tells it.
  int awaited_rank = -1;
  bool tells_awaited = false;
  std::string awaits;       // "all_reduce #17 of dp waits for rank 3"
  bool is_stopped = false;  // the kernel says so (state T), by SIGSTOP say; no debugger's stop
};

struct HangVerdict {
  std::vector<int> local_ranks;  // all workers furthest behind, the one to blame first
  std::string why;               // one line, about the first and how the others stand
};

class HangDetector {
 public:
  // `look_interval`: the time between two calls of Look.
  HangDetector(const HangLimits& limits, absl::Duration look_interval)
      : limits_(limits), look_interval_(look_interval) {}

  // Workers start now; workers of the epoch before are forgotten.
  void BeginEpoch(int first_global_rank, int world_size, MonotonicTime now);
  // A worker has ended.
  void Forget(int local_rank) { workers_.erase(local_rank); }
  // A worker has ended with 0, and the others may wait for it. `step`: its last one, if it told
  // any.
  void EndedWell(int local_rank, std::optional<int64_t> step, MonotonicTime now);

  // `readings`: the present pages, by local rank, without workers that never told; a page that
  // cannot be read at the moment counts as unchanged. No verdict: no worker hangs. A verdict stays
  // the same until something changes.
  std::optional<HangVerdict> Look(const std::map<int, WorkerReading>& readings, MonotonicTime now);

  // The slowest worker's progress; none: no worker tells its progress.
  std::optional<rendezvous::WorkerProgress> Progress(MonotonicTime now) const;

  // The line for the log, once, when the automatic limit of a step is first known; in an epoch
  // once, when others of the node still run 10 s after a worker ended with 0; else "".
  std::string TakeNews() { return std::exchange(news_, ""); }

 private:
  struct Worker {
    WorkerReading last;
    MonotonicTime since;                         // silent since
    std::optional<MonotonicTime> stopped_since;  // the first look that found it stopped
    bool is_sample_good = false;  // since the last finished step: no gap, no other phase
    bool has_risen = false;       // its step, in this epoch
    int64_t finished = 0;         // looks in this epoch that found steps finished
    std::deque<std::pair<MonotonicTime, int64_t>> recent;  // finished steps, for the rate
  };
  struct End {
    std::optional<int64_t> step;
    MonotonicTime at;
  };
  // The times of steps, or of stays in a phase.
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
  void NoteState(Worker& worker, const WorkerReading& reading, MonotonicTime now);
  // The workers of the lowest step, when all of them are overdue; else none.
  std::vector<int> Laggards(bool all_alike, MonotonicTime now) const;
  // Whether the worker may wait for a rank of another node.
  bool MayWaitElsewhere(const Worker& worker, bool all_alike) const;
  // Whether this worker's wait, and the wait of the worker that it waits for, and so on, lead to a
  // rank of another node.
  bool WaitsElsewhere(int local_rank) const;
  // "; ranks 4,5,6: all_reduce #17 of dp waits for rank 7", of the first groups of workers that
  // wait.
  std::string AwaitedText() const;
  // "ranks 5,6 at step 31 (step)": all workers but `blamed`.
  std::string PlacesText(int blamed) const;
  // Of a worker in a phase without a given limit.
  absl::Duration StoppedLimit() const;
  bool IsStoppedTooLong(int local_rank, const Worker& worker, MonotonicTime now) const;
  void BridgeGap(absl::Duration gap, MonotonicTime now);
  void NoteNews(MonotonicTime now);
  // "rank 1 (after step 30, 5 s ago)": the workers that ended with 0.
  std::string EndedText(MonotonicTime now) const;
  // nullptr when nothing is known of the worker's present phase.
  const Learnt* LearntOf(int local_rank, const Worker& worker) const;
  // The limit that a person gave for the worker's phase; zero: none.
  absl::Duration GivenLimit(const Worker& worker) const;
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
  std::map<int, Worker> workers_;                        // the workers that tell, by local rank
  std::map<int, End> ended_;                             // the workers that ended with 0
  std::map<int, std::map<std::string, Learnt>> learnt_;  // by local rank and phase
  std::string news_;
  bool has_had_news_ = false;
  bool has_told_of_end_ = false;  // in this epoch
};

}  // namespace convene::agent
