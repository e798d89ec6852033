// The bytes that its clients make the store hold, and how much each run may add to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// The budget has two parts. A quarter of it is for charges of at most kSmallBytes: barriers,
// counters, addresses, states. The rest is for larger ones. So large values never take the place of
// the small ones that all runs, and the run with the large values itself, need to go on.
//
// Of each part a run may hold as much as the part has free. A run that is alone gets half of it,
// the next one a quarter, and so on: whatever runs take, some is left for the next run (the dynamic
// threshold of Choudhury and Hahne, 1998, for buffers that many queues share; its alpha is 1 here).
//
// Thread-safe. It outlives its charges.
class Budget {
  struct Run;

 public:
  static constexpr size_t kSmallBytes = 64 << 10;

  explicit Budget(size_t bytes_max);
  ~Budget();

  // Bytes that a run holds from Resize() until it is destroyed, on whatever thread. One thread at a
  // time.
  class Charge {
   public:
    Charge() = default;
    Charge(Charge&& other) noexcept;
    Charge& operator=(Charge&& other) noexcept;
    ~Charge();

    // Less is always right. More: ResourceExhausted when the run may not hold so much; nothing is
    // changed then. A charge that has grown small again keeps its place in the larger part.
    // REQUIRES: it is from Budget::Open().
    absl::Status Resize(size_t bytes);
    size_t bytes() const { return bytes_; }

   private:
    friend class Budget;
    void Swap(Charge* other) noexcept;

    Budget* budget_ = nullptr;
    Run* run_ = nullptr;
    size_t bytes_ = 0;
    bool is_large_ = false;
  };

  // A charge of no bytes. `run`: any text. A run counts the bytes of its own record from its first
  // charge until its last one ends; nothing refuses these.
  Charge Open(absl::string_view run);
  // The errors of Resize().
  absl::StatusOr<Charge> Take(absl::string_view run, size_t bytes);

  size_t bytes_max() const { return bytes_max_; }
  // Of all charges.
  size_t bytes() const;
  bool Holds(absl::string_view run) const;

  struct RunBytes {
    std::string run;
    size_t bytes = 0;
  };
  struct Counts {
    size_t bytes = 0;
    size_t bytes_max = 0;
    int64_t refusals = 0;
    std::vector<RunBytes> largest;  // the runs that hold most, the largest first
  };
  // As of now, with at most `runs_max` runs.
  Counts counts(size_t runs_max) const;

 private:
  struct Part {
    size_t bytes = 0;
    size_t bytes_max = 0;
  };
  struct Run {
    std::string name;
    size_t bytes[2] = {0, 0};  // by is_large_
    size_t charges = 0;
  };

  absl::Status Resize(Charge* charge, size_t bytes);
  absl::Status Refusal(const Run& run, bool is_large, size_t more) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Charge* charge);

  const size_t bytes_max_;
  mutable Mutex mutex_;
  Part parts_[2] ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::unique_ptr<Run>> runs_ ABSL_GUARDED_BY(mutex_);
  int64_t refusals_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace convene::rendezvous
