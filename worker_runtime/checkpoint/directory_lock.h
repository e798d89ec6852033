// One job at a time writes into a checkpoint directory.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

struct DirectoryLockOptions {
  std::string job;  // its name, "" when it has none
  // The job ran before: a holder with the job's own name is then its predecessor.
  bool is_restart = false;
  // How long another job gets to end: a job that was just killed ends soon.
  absl::Duration wait_timeout = absl::Seconds(5);
  absl::Duration predecessor_timeout = absl::Minutes(2);  // the same for a predecessor
  // Called once when there is another holder, before the wait, with a sentence that says so.
  std::function<void(const std::string&)> on_wait = [](const std::string&) {};
  // Called once when this file system knows no locks.
  std::function<void(const std::string&)> on_unlocked = [](const std::string&) {};
  Clock* clock = &Clock::Real();
};

// The lock is held as long as the descriptor is open, and at most as long as the process: the
// kernel (or the file server) frees it when its owner dies, in whatever way. So a lock is never
// stale; the file "writer.lock", with the holder's words in it, stays.
//
// `directory` exists. AlreadyExists when another job still holds it after wait_timeout,
// DeadlineExceeded when a predecessor still holds it after predecessor_timeout: the text names the
// holder (process, host, job, since when). Where the file system has no locks (flock over NFS
// without a lock daemon: ENOLCK), on_unlocked is called and the descriptor is none. Other errors:
// ErrnoStatus of opening or writing the file.
absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory,
                                       const DirectoryLockOptions& options);

}  // namespace convene::worker
