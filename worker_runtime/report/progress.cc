#include "worker_runtime/report/progress.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "tools/base/text.h"
#include "worker_runtime/report/number_text.h"

namespace convene::worker {

std::string ProgressLine(const ProgressState& state) {
  std::string rewards;
  if (state.reward_accuracy.has_value()) {
    rewards = absl::StrFormat("right %.0f %%  margin %.3f  ", 100 * *state.reward_accuracy,
                              *state.reward_margin);
  }
  return absl::StrFormat("step %d/%d  loss %.4f  %sgrad %.2f  lr %.1e  %s tok/s  ETA %s",
                         state.step, state.steps, state.loss, rewards, state.grad_norm,
                         state.learning_rate, HumanCount(state.tokens_per_second),
                         HumanDuration(state.remaining));
}

std::string ProgressBar(int64_t done_bytes, int64_t total_bytes) {
  constexpr int kCells = 20;
  const double share =
      total_bytes > 0 ? std::clamp(static_cast<double>(done_bytes) / total_bytes, 0.0, 1.0) : 1.0;
  const int filled = static_cast<int>(share * kCells);
  return absl::StrFormat("[%s%s] %3.0f%%  %s of %s", std::string(filled, '#'),
                         std::string(kCells - filled, '-'), 100 * share, HumanBytes(done_bytes),
                         HumanBytes(total_bytes));
}

void TokenRate::Record(absl::Duration step_time, int64_t tokens) {
  constexpr double kWeight = 0.1;
  const double seconds = absl::ToDoubleSeconds(step_time) / static_cast<double>(tokens);
  ++recorded_;
  seconds_ = recorded_ <= 2 ? seconds : seconds_ + kWeight * (seconds - seconds_);
}

absl::Duration TokenRate::Remaining(int64_t tokens) const {
  if (tokens <= 0) return absl::ZeroDuration();
  return absl::Seconds(seconds_ * static_cast<double>(tokens));
}

void ProgressPrinter::Print(const ProgressState& state, MonotonicTime now) {
  const bool is_edge = is_first_ || state.step >= state.steps;
  is_first_ = false;
  if (!is_terminal_) {
    if (!is_edge && state.step % log_every_ != 0) return;
    absl::FPrintF(stream_, "%s\n", ProgressLine(state));
    std::fflush(stream_);
    return;
  }
  if (!is_edge && now - last_drawn_ < absl::Milliseconds(100)) return;
  last_drawn_ = now;
  is_line_open_ = true;
  // Goes back to the first column, writes the line, and clears the rest of an older, longer one.
  absl::FPrintF(stream_, "\r%s\x1b[K", ProgressLine(state));
  std::fflush(stream_);
}

void ProgressPrinter::EndLine() {
  if (!is_line_open_) return;
  is_line_open_ = false;
  std::fputc('\n', stream_);
  std::fflush(stream_);
}

}  // namespace convene::worker
