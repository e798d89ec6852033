// OpProfile by the host's clock, for streams whose ops are done when they return.
#pragma once

#include <vector>

#include "tools/base/clock.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

class HostProfile final : public OpProfile {
 public:
  explicit HostProfile(Clock& clock) : clock_(clock) {}

  void Begin(const char* op) override;
  void End() override;
  std::vector<OpTime> Times() override { return times_; }

 private:
  Clock& clock_;
  std::vector<OpTime> times_;
  const char* op_ = nullptr;
  MonotonicTime begin_;
};

// The entry of `op`, made when it is absent: an op is known by its literal's text.
OpTime& TimeOf(const char* op, std::vector<OpTime>& times);

}  // namespace convene::worker
