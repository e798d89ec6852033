// The first error of all the work that was queued on a device: later errors are mostly its echo.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "tools/base/mutex.h"

namespace convene::worker::cuda {

// Thread-safe.
class FirstError {
 public:
  // Keeps `status` if it is the first error.
  void Report(const absl::Status& status) {
    const MutexLock lock(&mutex_);
    first_.Update(status);
  }
  // OK as long as no error was reported.
  absl::Status status() const {
    const MutexLock lock(&mutex_);
    return first_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status first_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker::cuda
