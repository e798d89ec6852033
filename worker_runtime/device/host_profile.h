// OpProfile by the host's clock, for a CPU's streams.
#pragma once

#include <vector>

#include "tools/base/clock.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

class HostProfile final : public OpProfile {
 public:
  // For ops of `stream`, or of one whose queue is the same.
  HostProfile(Clock& clock, const Stream& stream) : clock_(clock), stream_(stream) {}
  ~HostProfile() override;

  void Begin(const char* op) override;
  void End() override;
  std::vector<OpTime> Times() override;

 private:
  Clock& clock_;
  const Stream stream_;
  // Used in the order of the stream's work: a wait for the queue comes before any other use.
  std::vector<OpTime> times_;
  const char* op_ = nullptr;
  MonotonicTime begin_;
};

// The entry of `op`, made when it is absent: an op is known by its literal's text.
OpTime& TimeOf(const char* op, std::vector<OpTime>& times);

}  // namespace convene::worker
