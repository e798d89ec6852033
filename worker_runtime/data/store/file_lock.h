// One process at a time, by a file in which its holder says how far it has come.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

// Whether `path` is still the file that `fd` is open on. An owner that removed its file leaves a
// lock that excludes nobody.
bool IsFileAt(const std::string& path, int fd);

// For as long as the object lives this process alone holds the file: the kernel frees it when its
// holder dies. Not thread-safe.
class FileLock {
 public:
  struct Wait {
    // For so long the holder may live and come no further.
    absl::Duration silence_max;
    Clock* clock = &Clock::Real();
    // Called with what the holder says, whenever that is new. May be empty.
    std::function<void(int64_t done, int64_t total)> progress;
  };

  // Makes the file when it is absent, and waits for its holder; logs once for whom. The holder may
  // remove the file. DeadlineExceeded: silence_max passed (names the holder and the file). Else as
  // OpenFile.
  static absl::StatusOr<FileLock> Take(const std::string& path, const Wait& wait);

  // Tells those who wait, at most once a second. No error of it matters.
  void Say(int64_t done, int64_t total);

 private:
  FileLock(UniqueFd fd, Clock* clock) : fd_(std::move(fd)), clock_(clock) {}

  UniqueFd fd_;
  Clock* clock_;
  MonotonicTime next_;  // until then Say is silent
};

}  // namespace convene::worker
