// The order between a store's two streams, by as few events as it takes.
#pragma once

#include <cstdint>
#include <memory>

#include "worker_runtime/device/device.h"

namespace convene::worker {

// A point in communication() for which compute() may wait. A point that was never recorded lies
// before everything.
class CommunicationPoint {
 public:
  explicit CommunicationPoint(Device& device) : event_(device.MakeEvent()) {}

 private:
  friend class StreamOrder;
  std::unique_ptr<Event> event_;
  int64_t place_ = 0;
};

// Not thread-safe. Borrows the device. Each call that an earlier one has made needless queues
// nothing.
class StreamOrder {
 public:
  // With `overlaps` false communication() is compute().
  StreamOrder(Device& device, bool overlaps)
      : device_(device),
        communication_(overlaps ? device.communication() : device.compute()),
        follows_(device.MakeEvent()),
        all_(device) {}

  Device& device() { return device_; }
  Stream& compute() { return device_.compute(); }
  Stream& communication() { return communication_; }

  // A number that stands for all that compute() holds by now; 0 stands for nothing.
  int64_t Mark() { return ++marks_; }
  // Work queued in communication() from now on begins after all that `mark` stands for.
  void Follow(int64_t mark) {
    if (mark <= followed_) return;
    device_.Record(*follows_, compute());
    device_.Order(*follows_, communication());
    followed_ = marks_;
  }

  // The point becomes all that communication() holds by now.
  void Record(CommunicationPoint& point) {
    device_.Record(*point.event_, communication());
    point.place_ = ++places_;
  }
  // Work queued in compute() from now on begins after the point.
  void Await(const CommunicationPoint& point) {
    if (point.place_ <= awaited_) return;
    device_.Order(*point.event_, compute());
    awaited_ = point.place_;
  }
  // Work queued in compute() from now on begins after all that communication() holds by now.
  void AwaitAll() {
    Record(all_);
    Await(all_);
  }

 private:
  Device& device_;
  Stream& communication_;
  const std::unique_ptr<Event> follows_;  // recorded and waited for within one call
  CommunicationPoint all_;                // the same
  int64_t marks_ = 0;
  int64_t followed_ = 0;  // communication() comes after all marks up to it
  int64_t places_ = 0;
  int64_t awaited_ = 0;  // compute() comes after all points up to it
};

}  // namespace convene::worker
