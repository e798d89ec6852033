// The wires of one rank, of all its groups: when a peer has been silent for the whole time of one
// call, the rank is about to end, and none of its other calls waits for a time of its own.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "tools/base/mutex.h"
#include "worker_runtime/comm/wire.h"

namespace convene::worker {

// Thread-safe.
class RankWires {
 public:
  // `wire` lives until Remove.
  void Add(Wire* wire) {
    MutexLock lock(&mutex_);
    wires_.push_back(wire);
  }
  void Remove(Wire* wire) {
    MutexLock lock(&mutex_);
    wires_.erase(std::find(wires_.begin(), wires_.end(), wire));
  }

  // Every wait of now and later ends with `why`, which is not OK. False, and nothing happens, where
  // the rank has given up before.
  bool GiveUp(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (has_given_up_) return false;
    has_given_up_ = true;
    for (Wire* const wire : wires_) wire->Abort(why);
    return true;
  }

 private:
  Mutex mutex_;
  std::vector<Wire*> wires_ ABSL_GUARDED_BY(mutex_);
  bool has_given_up_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace convene::worker
