// The reports of a run about its ops: --profile, --comm-log and --trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/profile/comm_log.h"
#include "worker_runtime/profile/step_profile.h"
#include "worker_runtime/profile/trace.h"
#include "worker_runtime/profile/trace_gather.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/trainer/reporter.h"

namespace convene::worker {

// One rank's watch over its own steps. The profile is of rank 0 alone; the table of collectives and
// a trace are of all ranks, which all call the same functions with the same steps. Not thread-safe.
class OpReports {
 public:
  // Borrows all but the layout. `host`: all ranks.
  // `reporter`: rank 0's; null on others. `first_step`: the steps that were done before.
  OpReports(const TrainOptions& options, const Layout& layout, Collective& host, Reporter* reporter,
            ProgressWriter& progress, Device& device, int64_t first_step);

  // Begins the trace's file, on rank 0. A run that ends before the last traced step removes it.
  // Errors: the file system's.
  absl::Status Open();

  // Whether no step may be in flight after `step`. The same on every rank.
  bool PausesAfter(int64_t step) const;
  // The ops that are queued from now on are those of a step that follows `done` steps. Errors:
  // Device::Synchronize's.
  absl::Status Watch(int64_t done);
  // ... are of no step.
  void Pause();
  // The result of `step` came at `now`, `step_time` after that of the step before.
  // `is_update_late`: the step's update may still run, and no step follows at once. The last traced
  // step writes the trace; where its file cannot be written, the run goes on without. Errors:
  // Device::Synchronize's, GatherTrace's.
  absl::Status StepDone(int64_t step, MonotonicTime now, absl::Duration step_time,
                        bool is_update_late);
  // The tables, at the end of a run of `steps` steps; "" when none is wanted. Errors: GatherComm's.
  absl::StatusOr<std::string> Text(int64_t steps);

 private:
  // Whether this rank's ops are for a table.
  bool HasTables() const { return options_.comm_log || (options_.profile && reporter_ != nullptr); }
  bool Counts(int64_t step) const { return HasTables() && step > counted_from_; }
  bool Traces(int64_t step) const {
    return traced_.has_value() && traced_->first <= step && step <= traced_->last;
  }
  absl::Status Synchronize() { return device_.Synchronize(2 * options_.collective_timeout); }
  // Takes what is known of `step`.
  void Take(int64_t step);
  absl::Status WriteTrace();

  const TrainOptions& options_;
  const Layout layout_;
  Collective& host_;
  Reporter* const reporter_;
  ProgressWriter& progress_;
  Device& device_;
  Clock& clock_ = Clock::Real();
  const int64_t counted_from_;  // earlier steps also build what later ones reuse
  std::unique_ptr<StepProfile> profile_;
  absl::Duration counted_time_;
  CommLog comm_log_;
  std::optional<StepRange> traced_;  // steps that are still to be traced, or under way
  RankTrace trace_;
  size_t trace_calls_ = 0;
  std::unique_ptr<TraceFile> trace_file_;  // rank 0 only
};

}  // namespace convene::worker
