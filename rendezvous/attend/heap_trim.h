// When free pages of the heap go back to the system.
#pragma once

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// Thousands of streams that end leave tens of MiB of free pages which malloc keeps. These pages go
// back to the system once many streams have ended and no stream has ended for 5 s. Other threads
// wait for the heap while they go back (50 ms after 2,000 streams). PURE; not thread-safe.
class HeapTrim {
 public:
  static constexpr int kManyStreams = 256;
  static constexpr absl::Duration kQuiet = absl::Seconds(5);

  void StreamEnded(MonotonicTime now) {
    ++ended_;
    last_end_ = now;
  }
  MonotonicTime due_at() const {
    return ended_ >= kManyStreams ? last_end_ + kQuiet : MonotonicTime::InfiniteFuture();
  }
  // Whether it is time; if so, counting begins anew.
  bool Take(MonotonicTime now) {
    if (due_at() > now) return false;
    ended_ = 0;
    return true;
  }

 private:
  int ended_ = 0;
  MonotonicTime last_end_;
};

}  // namespace convene::rendezvous
