// The facts on a rank's progress page beside step and phase: how long the steps computed, waited
// and loaded, tokens and loss.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker_runtime/device/device.h"
#include "worker_runtime/device/waited.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/profile/wait_sample.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// The writer of the page at `path`. A run goes on without its page, but then the agent cannot see
// that it hangs: a warning says so.
std::unique_ptr<ProgressWriter> OpenProgress(const std::string& path);

// While it lives, the page tells which rank a collective of this process waits for
// (flight_recorder.h). Borrows the writer.
class AwaitedReports {
 public:
  explicit AwaitedReports(ProgressWriter& progress);
  ~AwaitedReports();
  AwaitedReports(const AwaitedReports&) = delete;
  AwaitedReports& operator=(const AwaitedReports&) = delete;
};

// Used by the thread that makes the steps. On a CPU its own clock tells how long a step computes
// and waits. A GPU's time is divided as in its newest sample (wait_sample.h); before the first both
// stay 0. Borrows the device.
class StepFacts {
 public:
  StepFacts(const Layout& layout, int rank, Device& device, ProgressWriter& progress);

  // Nothing is in flight, and a step begins.
  void Begin();
  // The work that is queued from now on is that of `step`.
  void Queue(int64_t step) {
    if (sample_.has_value()) sample_->Begin(step);
  }
  // Loads samples for a step. Returns load()'s result.
  template <typename Load>
  auto Data(const Load& load) {
    const OwnTime own;
    auto loaded = load();
    progress_.facts().data += own.Get();
    return loaded;
  }
  // So long this rank has waited for samples since the last call.
  absl::Duration TakeDataTime() {
    return progress_.facts().data - std::exchange(taken_, progress_.facts().data);
  }
  // The step is done, `time` after it began or the step before was done. `tokens`: of the job, from
  // its first step on.
  void Done(const StepResult& result, absl::Duration time, int64_t tokens);

 private:
  const int ranks_;
  ProgressWriter& progress_;
  std::optional<WaitSample> sample_;  // of a GPU
  OwnTime own_;                       // since Begin
  absl::Duration waited_;             // by Begin
  absl::Duration data_;               // the same
  absl::Duration taken_;              // by the last TakeDataTime
};

}  // namespace convene::worker
