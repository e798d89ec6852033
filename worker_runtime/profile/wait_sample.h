// How a GPU's steps divide into a rank's own work and its waits for other ranks. The host runs
// ahead of a GPU and cannot tell: events around the waits of the stream compute() do, in a sample
// of the steps. An update of the rank's own that compute() waits for counts as a wait, on all ranks
// alike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

// Of the thread that queues a rank's steps. Borrows the device.
class WaitSample {
 public:
  // One step in four: a wait costs two events. Every rank samples the same steps.
  static constexpr int64_t kEvery = 4;

  explicit WaitSample(Device& device);
  ~WaitSample();
  WaitSample(const WaitSample&) = delete;
  WaitSample& operator=(const WaitSample&) = delete;

  // Work queued in compute() from now on is of `step`. No step is sampled while another profile
  // watches the stream.
  void Begin(int64_t step);
  // The result of the step that began last is there, `time` after the result of the step before.
  // Work queued from now on is of no step. The part of a step's time in which the stream waited, 0
  // to 1, in the newest sample that is known; nullopt before the first.
  std::optional<double> Done(absl::Duration time);

 private:
  class WaitsOnly;

  // Work queued from now on is not sampled.
  void End();

  Device& device_;
  const std::unique_ptr<WaitsOnly> waits_;
  bool is_sampled_ = false;                // the step that began last
  std::optional<absl::Duration> unknown_;  // the time of a sampled step whose waits are not read
  double seconds_ = 0;                     // of all waits that were read
  std::optional<double> share_;
};

}  // namespace convene::worker
