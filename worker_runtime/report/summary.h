// PURE. The lines that stand on the terminal when a run ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace convene::worker {

struct TrainingSummary {
  int64_t first_step =
      0;  // steps that were finished when this process began: 0, or those of the checkpoint
  int64_t step = 0;   // finished now
  int64_t steps = 0;  // in all
  double loss = 0;    // of the last step; meaningful when this process did one
  std::optional<double> validation_loss;
  std::optional<double> bits_per_byte;  // of the same validation
  absl::Duration wall_time;             // of this process
  double tokens_per_second = 0;         // over that time
  int64_t restarts = 0;                 // how often the job was formed anew before
  std::string checkpoint;               // the newest one's directory, "" when there is none
  int64_t checkpoint_step = 0;          // meaningful with a checkpoint
  std::string metrics_file;             // "" when there is none
};

// A few aligned lines, the last of which says how to go on; with a newline at the end.
std::string SummaryText(const TrainingSummary& summary);

}  // namespace convene::worker
