// Wakes the thread of an EventLoop.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene {

// An eventfd. Rings between two looks count as one.
class Doorbell {
 public:
  Doorbell();

  // `on_ring` is called on the loop's thread after one or more rings, also for rings before this.
  // Once. ResourceExhausted without a descriptor to spare. Where the loop goes on after the
  // doorbell, Detach on the loop's thread comes first.
  absl::Status Attach(EventLoop& loop, std::function<void()> on_ring) const;
  void Detach(EventLoop& loop) const { loop.Forget(event_.get()); }
  // From any thread, before Attach too. Never blocks.
  void Ring() const;

 private:
  UniqueFd event_;
};

}  // namespace convene
