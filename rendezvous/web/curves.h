// PURE. The course of a job's training as its workers told it, thinned out so that it stays small.
// The daemon keeps it in memory alone, for the page's curves and for the goodput.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// A moment of a job, over all its ranks. A value that no rank tells is none.
struct TrainingSample {
  std::optional<int64_t> step;  // the last one that every rank that tells its step has finished
  std::optional<double> steps_per_second;   // of the slowest
  std::optional<double> loss;               // the mean over the ranks that tell one
  std::optional<double> tokens_per_second;  // the whole job's
  std::optional<double> mfu;                // the mean over the ranks that tell it
  bool is_running = false;                  // the job's phase is "running"
  bool is_checkpointing = false;            // a rank is in the phase "checkpoint"
  Epoch epoch;
};
TrainingSample SampleOf(const JobView& view);

// A point of the curves. NaN: not told.
struct CurvePoint {
  double time_seconds = 0;  // since 1970, by the daemon's clock: of the last sample in the point
  int64_t step = 0;         // of that sample
  double loss = 0;          // each the mean of the samples in the point
  double tokens_per_second = 0;
  double steps_per_second = 0;
};

// At most kMostPoints points, each of the same number of samples. When they are full, each two
// become one.
class Curve {
 public:
  static constexpr size_t kMostPoints = 512;  // even

  void Add(const CurvePoint& sample);
  // Oldest first; the last one may still be filling.
  const std::vector<CurvePoint>& points() const { return points_; }

 private:
  std::vector<CurvePoint> points_;
  int64_t samples_per_point_ = 1;
  int64_t samples_in_last_ = 0;
};

// The share of a job's time in which it made steps that it had not made before: the rest went into
// starting, waiting for nodes, checkpoints, and steps that a failure made the job do again.
class Goodput {
 public:
  void Add(MonotonicTime now, const TrainingSample& sample);
  // From 0 to 1; none before the first step is told.
  std::optional<double> share() const;

 private:
  std::optional<MonotonicTime> begun_;  // the first sample
  MonotonicTime last_;                  // the newest sample
  MonotonicTime step_seen_;             // the moment of the newest step's first sample
  absl::Duration in_checkpoints_ = absl::ZeroDuration();  // since step_seen_
  absl::Duration kept_ = absl::ZeroDuration();
  std::optional<int64_t> highest_;
  std::optional<int64_t> step_;  // of the epoch; none before its first
  Epoch epoch_;
  bool was_checkpointing_ = false;
};

// The curves of all jobs. Not thread-safe. A job that is no longer among the views is forgotten, so
// the daemon's jobs bound it: 20 KB a job that tells its progress. A new run of a job's name begins
// anew.
class JobCurves {
 public:
  struct Job {
    Curve curve;
    Goodput goodput;
    Epoch floor;  // of this run
    bool is_over = false;
  };
  // A job that is over is not sampled any more. `wall`: the moment for people.
  void Add(MonotonicTime now, absl::Time wall, const std::vector<JobView>& views);
  // Null before the job's first sample.
  const Job* Find(const std::string& job_id) const;

 private:
  std::map<std::string, Job> jobs_;
};

// Calls its argument with the curves of a job, or with null.
using CurvesOf = std::function<void(const std::string& job_id,
                                    absl::FunctionRef<void(const JobCurves::Job*)> use)>;
// From 0 to 1; none while it is not known.
std::optional<double> GoodputOf(const std::string& job_id, const CurvesOf& curves_of);

}  // namespace convene::rendezvous
