// Where the time of a step goes: every op of a stream, by name.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// The name of a collective's ops begins with this; the group's name follows.
inline constexpr char kCommunicationPrefix[] = "communication/";

// All calls of one op since the profile began.
struct OpTime {
  const char* op = nullptr;
  int64_t calls = 0;
  double seconds = 0;
};

// Watches the ops of one stream, one after the other. Made by a device (Device::MakeProfile), given
// to the stream by Stream::set_profile. One thread at a time, in the order of the stream's work:
// a queue on the CPU calls Begin and End on its own thread, with the profile that the stream had
// when the op was queued.
class OpProfile {
 public:
  virtual ~OpProfile() = default;
  // `op` lives as long as the profile. REQUIRES: the previous op has ended.
  virtual void Begin(const char* op) = 0;
  virtual void End() = 0;
  // All ops until now, in the order of first calls. It waits for queued work, as the destructor
  // does.
  virtual std::vector<OpTime> Times() = 0;
};

// One op, as long as it lives. It costs a comparison where the stream has no profile.
class OpScope {
 public:
  OpScope(const Stream& stream, const char* op) : OpScope(stream.profile(), op) {}
  OpScope(OpProfile* profile, const char* op) : profile_(profile) {
    if (profile_ != nullptr) profile_->Begin(op);
  }
  ~OpScope() {
    if (profile_ != nullptr) profile_->End();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  OpProfile* const profile_;
};

}  // namespace convene::worker
