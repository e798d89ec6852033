#include "worker_runtime/device/host_profile.h"

#include <cstring>

#include "absl/time/time.h"
#include "tools/base/check.h"
#include "worker_runtime/device/host_queue.h"

namespace convene::worker {

HostProfile::~HostProfile() { AwaitAll(stream_); }

std::vector<OpTime> HostProfile::Times() {
  AwaitAll(stream_);
  return times_;
}

void HostProfile::Begin(const char* op) {
  CONVENE_CHECK(op_ == nullptr);
  op_ = op;
  begin_ = clock_.Now();
}

void HostProfile::End() {
  CONVENE_CHECK(op_ != nullptr);
  OpTime& time = TimeOf(op_, times_);
  time.seconds += absl::ToDoubleSeconds(clock_.Now() - begin_);
  ++time.calls;
  op_ = nullptr;
}

OpTime& TimeOf(const char* op, std::vector<OpTime>& times) {
  for (OpTime& time : times) {
    if (time.op == op || std::strcmp(time.op, op) == 0) return time;
  }
  times.push_back({.op = op});
  return times.back();
}

}  // namespace convene::worker
