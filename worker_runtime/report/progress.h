// The progress of a run, for the person who watches it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::worker {

struct ProgressState {
  int64_t step = 0;   // finished
  int64_t steps = 0;  // in all
  double loss = 0;
  double grad_norm = 0;
  std::optional<double> reward_accuracy, reward_margin;  // StepMetrics': both or none
  double learning_rate = 0;
  double tokens_per_second = 0;
  absl::Duration remaining = absl::InfiniteDuration();  // infinite = not known yet
};

// PURE. "step 120/500  loss 2.3412  grad 0.81  lr 9.8e-04  41.2k tok/s  ETA 0:42", without a
// newline. Of pairs of answers, behind the loss: "right 71 %  margin 0.124".
std::string ProgressLine(const ProgressState& state);

// PURE. "[##########----------]  50%  4.6 MiB of 9.1 MiB".
std::string ProgressBar(int64_t done_bytes, int64_t total_bytes);

// PURE. The time of a token, smoothed over about the last ten steps, so that the time left does not
// jump. Steps may have ever more tokens (--rampup-batch-size).
class TokenRate {
 public:
  // The first step also pays for the start (caches, connections): it counts only until the second
  // is known. REQUIRES: tokens > 0.
  void Record(absl::Duration step_time, int64_t tokens);

  // 0 before the first Record.
  double tokens_per_second() const { return 1 / seconds_; }
  // Infinite before the first Record.
  absl::Duration Remaining(int64_t tokens) const;

 private:
  int64_t recorded_ = 0;
  double seconds_ = std::numeric_limits<double>::infinity();
};

// Writes progress lines. On a terminal one line is redrawn in place, at most ten times a second;
// elsewhere there is a line for the first and the last step and for every `log_every`th. Not
// thread-safe; write errors are ignored: progress must not end a run.
class ProgressPrinter {
 public:
  // `stream` is not owned. REQUIRES: log_every >= 1.
  ProgressPrinter(std::FILE* stream, bool is_terminal, int64_t log_every)
      : stream_(stream), is_terminal_(is_terminal), log_every_(log_every) {}

  // Call it after each step; `now` only ever grows.
  void Print(const ProgressState& state, MonotonicTime now);

  // Ends a line that stands open on the terminal. Call it before anything else is written there,
  // and at the end.
  void EndLine();

 private:
  std::FILE* const stream_;
  const bool is_terminal_;
  const int64_t log_every_;
  bool is_first_ = true;
  bool is_line_open_ = false;
  MonotonicTime last_drawn_;
};

}  // namespace convene::worker
