// PURE. The events of a run that are new since the last look.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::launcher {

class EventNews {
 public:
  // The events of `events` (oldest first) that were not taken before. A daemon that was started
  // again counts from 1: all its events are new. The newest event taken tells such a daemon: its
  // number is not there any more, or belongs to another time.
  std::vector<rendezvous::EventView> Take(const std::vector<rendezvous::EventView>& events);

 private:
  int64_t number_ = 0;  // of the newest event taken; 0: none
  absl::Time time_;
};

}  // namespace convene::launcher
