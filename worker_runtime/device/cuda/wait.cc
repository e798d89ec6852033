#include "worker_runtime/device/cuda/wait.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "worker_runtime/device/cuda/queue.h"

namespace convene::worker::cuda {
namespace {

// Long beside a query; short beside the optimizer's update, during which a step's result is noticed
// and the next step is queued.
constexpr absl::Duration kFirstPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Microseconds(100);
// Backoff needs almost no jitter: there is only one waiter.
constexpr double kWholePause = 0.999;

}  // namespace

absl::Status WaitFor(cudaEvent_t event, absl::Duration timeout) {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  Backoff pause(kFirstPause, kLongestPause);
  for (;;) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return CudaStatus(error, "work queued on the GPU");
    (void)cudaGetLastError();  // "not ready" is no error of the next launch
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the GPU has not finished its queued work within ", absl::FormatDuration(timeout)));
    }
    Clock::Real().SleepFor(std::min(pause.Next(kWholePause), left));
  }
}

}  // namespace convene::worker::cuda
