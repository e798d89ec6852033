#include "worker_runtime/device/cuda/first_error.h"

namespace convene::worker::cuda {

void FirstError::Report(const absl::Status& status) {
  if (status.ok()) return;
  const MutexLock lock(&mutex_);
  if (first_.ok()) first_ = status;
}

absl::Status FirstError::status() const {
  const MutexLock lock(&mutex_);
  return first_;
}

}  // namespace convene::worker::cuda
