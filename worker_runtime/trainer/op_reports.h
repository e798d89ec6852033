// The reports of a run about its ops: --profile and --comm-log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/comm_log.h"
#include "worker_runtime/trainer/step_profile.h"

namespace convene::worker {

// One rank's watch over its own steps. Not thread-safe.
class OpReports {
 public:
  // Rank 0 tells its own ops. `first_step`: the steps that were done before. Borrows both
  // references. REQUIRES: the device is idle.
  OpReports(const TrainOptions& options, int rank, int64_t first_step, Device& device,
            Clock& clock);

  // Whether no step may be in flight after `step`. The same on every rank.
  bool PausesAfter(int64_t step) const { return is_wanted_ && step == counted_from_; }
  // The ops that are queued from now on are those of a step that follows `done` steps.
  void Watch(int64_t done);
  // ... are of no step.
  void Pause();
  // The result of `step` came at `now`, `step_time` after that of the step before.
  // `is_update_late`: the step's update may still run, and no step follows at once. Errors:
  // Device::Synchronize's.
  absl::Status StepDone(int64_t step, MonotonicTime now, absl::Duration step_time,
                        bool is_update_late);
  // The tables, at the end of a run of `steps` steps; "" when none is wanted.
  std::string Text(int64_t steps);

 private:
  bool Counts(int64_t step) const { return profile_ != nullptr && step > counted_from_; }

  const TrainOptions& options_;
  Device& device_;
  Clock& clock_;
  const bool is_wanted_;
  const int64_t counted_from_;  // earlier steps also build what later ones reuse
  std::unique_ptr<StepProfile> profile_;
  absl::Duration counted_time_;
  CommLog comm_log_;
};

}  // namespace convene::worker
