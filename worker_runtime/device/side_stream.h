// A collective inside a layer that runs beside the arithmetic queued after it, until the arithmetic
// needs its result.
#pragma once

#include <memory>

#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// Not thread-safe; one fork at a time. Borrows the device.
class SideStream {
 public:
  // With `is_beside` false everything stays in the stream that forks.
  explicit SideStream(Device& device, bool is_beside = true)
      : device_(device), order_(is_beside ? device.MakeEvent() : nullptr) {}

  // Work queued in the result begins after all work in `stream`. Products that `stream` is given
  // from now on leave it kCollectiveMultiprocessors.
  Stream& Fork(Stream& stream) {
    if (order_ == nullptr) return stream;
    Stream& side = device_.layer_communication();
    device_.Record(*order_, stream);
    device_.Order(*order_, side);
    stream.set_left_free(kCollectiveMultiprocessors);
    return side;
  }
  // Work that `stream` is given from now on begins after all work in Fork's result.
  void Join(Stream& stream) {
    if (order_ == nullptr) return;
    device_.Record(*order_, device_.layer_communication());
    device_.Order(*order_, stream);
    stream.set_left_free(0);
  }

 private:
  Device& device_;
  const std::unique_ptr<Event> order_;  // recorded and waited for within one call; null: no fork
};

}  // namespace convene::worker
