#include "worker_runtime/data/prepare/progress_output.h"

#include "absl/strings/str_cat.h"
#include "tools/base/text.h"
#include "worker_runtime/report/number_text.h"
#include "worker_runtime/report/progress.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(30);
// A rate over less time says little.
constexpr absl::Duration kLeastTime = absl::Milliseconds(500);

}  // namespace

std::string ProgressOutput::Text(const Point& now, int64_t total_bytes) const {
  std::string text = absl::StrCat(label_, ProgressBar(now.bytes, total_bytes));
  const absl::Duration time = now.time - first_->time;
  const auto done = static_cast<double>(now.bytes - first_->bytes);
  if (time < kLeastTime || done <= 0) return text;
  const double rate = done / absl::ToDoubleSeconds(time);
  const absl::Duration rest = absl::Seconds(static_cast<double>(total_bytes - now.bytes) / rate);
  return absl::StrCat(text, "  ", HumanBytes(rate), "/s  ETA ", HumanDuration(rest));
}

void ProgressOutput::Show(int64_t done_bytes, int64_t total_bytes) {
  const Point now = {done_bytes, clock_->Now()};
  if (!first_.has_value()) {
    first_ = now;
    last_written_ = now.time;
  }
  if (now.time - last_written_ < (is_terminal_ ? kRedrawInterval : kLineInterval)) return;
  last_written_ = now.time;
  std::fprintf(stream_, is_terminal_ ? "\r%s\x1b[K" : "%s\n", Text(now, total_bytes).c_str());
  std::fflush(stream_);
  is_line_open_ = is_terminal_;
}

void ProgressOutput::End() {
  if (is_line_open_) std::fputs("\r\x1b[K", stream_);
  is_line_open_ = false;
  first_.reset();
}

}  // namespace convene::worker
