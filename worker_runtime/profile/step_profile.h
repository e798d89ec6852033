// Where the time of a run's steps went.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

// PURE. One line an op, the longest first within its group, groups by their sums; then the gaps:
// the rest of `seconds` that is in no op (the host, waiting for other streams). `seconds` is the
// time of `steps` steps. Below the sum stands the work that ran beside these ops: in the streams
// for communication, and in the host's stream, where the optimizer may be. It is no part of the
// sum. Ends with a newline. "" when steps is 0.
//
//   profile of 20 steps        ms a step   share
//   products                       10.10   66.0%
//     MatMul                       10.10   66.0%
//   gaps                            0.31    2.0%
//   step                           15.30
//   communication, beside           2.00   13.1%
//     tp                            2.00   13.1%
std::string ProfileText(const std::vector<OpTime>& times, const std::vector<OpTime>& communication,
                        const std::vector<OpTime>& host, int64_t steps, double seconds);

// Watches what one rank queues in its device's streams. Borrows the device, which outlives it. Not
// thread-safe.
class StepProfile {
 public:
  explicit StepProfile(Device& device);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Whether what is queued from now on counts; at first nothing does.
  void Watch(bool is_wanted);
  // Also keeps each call (OpProfile::KeepSpans), at most `most` a stream until they are taken.
  // REQUIRES: the device is idle.
  void KeepSpans(size_t most);
  // OpProfile::TakeSpans of the streams, in the order of kStreams.
  std::vector<OpSpans> TakeSpans();
  static constexpr const char* kStreams[] = {"compute", "host", "communication",
                                             "layer communication"};
  // ProfileText of all that counted. Waits for what is queued.
  std::string Text(int64_t steps, double seconds) const;

 private:
  struct Watched {
    Stream& stream;
    std::unique_ptr<OpProfile> profile;
  };
  std::vector<Watched> watched_;  // in the order of kStreams
};

}  // namespace convene::worker
