// Where work is queued. Every op and collective takes one, so that a second kind of device changes
// no signature.
#pragma once

namespace convene::worker {

enum class DeviceKind { kCpu };

// On the CPU a stream is the calling thread: an op is done when it returns. Not thread-safe.
class Stream {
 public:
  static Stream Cpu() { return Stream(DeviceKind::kCpu); }
  DeviceKind kind() const { return kind_; }

 private:
  explicit Stream(DeviceKind kind) : kind_(kind) {}
  DeviceKind kind_;
};

}  // namespace convene::worker
