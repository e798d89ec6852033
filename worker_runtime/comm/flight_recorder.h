// The last collectives of this process, for the moment when one of them hangs: a comparison of
// (group, sequence, operation, bytes, element type) over ranks finds the rank that did another
// operation. It also knows for which rank the operations wait that have not ended, and tells an
// observer of the one that waits longest; of operations beside the training only when no other
// waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {

// An operation that waits for another rank.
struct AwaitedOperation {
  absl::string_view group;
  absl::string_view operation;
  uint64_t sequence = 0;
  int global_rank = 0;  // that it waits for
};

// Thread-safe. Keeps the last `capacity` operations; does not allocate after its construction, as
// long as group and operation names stay within 15 characters.
class FlightRecorder {
 public:
  // REQUIRES: capacity > 0. `clock` outlives the recorder.
  FlightRecorder(size_t capacity, Clock& clock);

  // Returns the handle for Finish. `sequence` counts the operations of `group`, from 1. Of `data`
  // only size and type are kept.
  uint64_t Start(absl::string_view group, absl::string_view operation, uint64_t sequence,
                 ConstElements data);
  // Does nothing when the entry has been overwritten since.
  void Finish(uint64_t handle, const absl::Status& status);

  // The operation waits for this rank from now on, until its next call or its end.
  // `is_beside_training`: the training may go on meanwhile. It is the same in all calls of an
  // operation.
  void Awaits(uint64_t handle, int global_rank, bool is_beside_training = false);

  // `observer` hears of the operation that began to wait first of all of the training that wait; of
  // one beside the training where the training's wait for nothing; or null: at each change, on the
  // thread that changes it and under the recorder's lock: it calls nothing of the recorder. An
  // empty one: nobody hears. The observer before has returned for good.
  using Observer = std::function<void(const AwaitedOperation*)>;
  void Observe(Observer observer);

  // The last `most` operations, one a line, oldest first, times in milliseconds since the recorder
  // was made: "12.345 ms  dp #17 all_reduce 4096 B bf16  finished after 0.120 ms".
  std::string Dump(size_t most) const;
  // Writes the last 16 to the log, when an operation was not done within its time.
  void Log() const;

  // The process's own, of 4096 entries on the real clock.
  static FlightRecorder& OfProcess();

 private:
  struct End {
    MonotonicTime at;
    absl::StatusCode code;
  };
  struct Entry {
    uint64_t handle = 0;  // 0 = never used
    std::string group;
    std::string operation;
    uint64_t sequence = 0;
    size_t size_bytes = 0;
    DType dtype = DType::kFloat32;
    MonotonicTime started;
    std::optional<int> awaited;  // the rank that it waits for, or waited for last
    std::optional<End> end;
  };

  struct Waiting {
    uint64_t handle;
    bool is_beside_training;
  };

  // Where the operation stands in waiting_; its end: it does not wait.
  std::vector<Waiting>::iterator Find(uint64_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first of waiting_ that is not so old that its entry is another's; the end: there is none.
  std::vector<Waiting>::iterator FirstKept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the observer of FirstKept.
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Line(const Entry& entry, MonotonicTime now) const;

  Clock& clock_;
  const MonotonicTime born_;

  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // handle h stands at h % size
  uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  // The operations that wait, first those of the training, in the order in which they began to: a
  // few.
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  Observer observer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker
