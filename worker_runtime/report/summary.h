// PURE. The lines that stand on the terminal when a run ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker_runtime/planner/utilization.h"
#include "worker_runtime/report/metrics.h"

namespace convene::worker {

struct TrainingSummary {
  int64_t first_step =
      0;  // steps that were finished when this process began: 0, or those of the checkpoint
  int64_t step = 0;   // finished now
  int64_t steps = 0;  // in all
  // Of the last step that has one, which is a number; nullopt: this process did no such step.
  std::optional<double> loss;
  int64_t loss_step = 0;  // that step
  // Steps of this process, with those that it took back, but for those without a target that
  // counts.
  int64_t made_steps = 0;
  int64_t skipped_steps = 0;   // of these
  int64_t spikes = 0;          // of these, because of the loss or gradient
  int64_t skipped_at_end = 0;  // of these, the last ones without another between them
  std::vector<ValidationMetrics> validations;  // the last one of each set
  absl::Duration wall_time;                    // of this process
  double tokens_per_second = 0;                // over that time
  int world_size = 1;
  absl::Duration kept_time;        // of wall_time: in steps that changed the weights
  absl::Duration data_time;        // of kept_time and of other steps: rank 0 waited for samples
  absl::Duration checkpoint_time;  // of wall_time: checkpoints held the training
  // Over wall_time, of a GPU whose peak is known.
  std::optional<Utilization> mfu;
  double peak = 0;                     // FLOP/s of a GPU; meaningful with mfu
  int64_t host_memory_peak_bytes = 0;  // of rank 0's process; 0: not known
  int64_t restarts = 0;                // how often the job was formed anew before
  int64_t rollbacks = 0;               // of the whole run
  std::string checkpoint;              // the newest one's directory, "" when there is none
  int64_t checkpoint_step = 0;         // meaningful with a checkpoint
  std::string metrics_file;            // "" when there is none
  int64_t lost_metrics = 0;            // lines that are not at its end, for want of room
};

// A few aligned lines, the last of which says how to go on; with a newline at the end.
std::string SummaryText(const TrainingSummary& summary);

}  // namespace convene::worker
