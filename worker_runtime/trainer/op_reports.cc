#include "worker_runtime/trainer/op_reports.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Not counted: the first steps also build kernels, choose algorithms and open connections.
constexpr int64_t kUncountedSteps = 3;
// The most ops of a step that each stream keeps.
constexpr size_t kSpansMax = 1 << 18;

}  // namespace

OpReports::OpReports(const TrainOptions& options, int rank, int64_t first_step, Device& device,
                     Clock& clock)
    : options_(options),
      device_(device),
      clock_(clock),
      is_wanted_(options.profile || options.comm_log),
      counted_from_(std::min(first_step + kUncountedSteps, options.steps - 1)) {
  if (!is_wanted_ || rank != 0) return;
  profile_ = std::make_unique<StepProfile>(device);
  if (options.comm_log) profile_->KeepSpans(kSpansMax);
}

void OpReports::Watch(int64_t done) {
  if (profile_ != nullptr) profile_->Watch(Counts(done + 1));
}

void OpReports::Pause() {
  if (profile_ != nullptr) profile_->Watch(false);
}

absl::Status OpReports::StepDone(int64_t step, MonotonicTime now, absl::Duration step_time,
                                 bool is_update_late) {
  if (profile_ == nullptr) return absl::OkStatus();
  // The update's ops are counted, so their time must be, and in this step.
  if (is_update_late) {
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(2 * options_.collective_timeout));
    step_time += clock_.Now() - now;
  }
  if (!Counts(step)) return absl::OkStatus();
  counted_time_ += step_time;
  if (options_.comm_log) comm_log_.Add(profile_->TakeSpans());
  return absl::OkStatus();
}

std::string OpReports::Text(int64_t steps) {
  if (profile_ == nullptr) return "";
  const int64_t counted = steps - counted_from_;
  std::string text;
  if (options_.profile) text = profile_->Text(counted, absl::ToDoubleSeconds(counted_time_));
  if (options_.comm_log) {
    comm_log_.Add(profile_->TakeSpans());
    absl::StrAppend(&text, comm_log_.Text(counted));
  }
  return text;
}

}  // namespace convene::worker
