// One job at a time writes into a checkpoint directory.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

struct DirectoryLockOptions {
  std::string job;  // its name, "" when it has none
  // The job ran before: a holder with the job's own name is then its predecessor.
  bool is_restart = false;
  // No other job has its name, so such a holder can be nobody else.
  bool has_own_name = true;
  // How long another job on this machine gets to end: a job that was just killed ends soon.
  absl::Duration wait_timeout = absl::Seconds(5);
  // The same for a predecessor, and for a job on another machine: that one may be lost, and a file
  // server keeps the locks of a lost machine for a while (NFSv4: 90 s).
  absl::Duration lost_machine_timeout = absl::Minutes(2);
  // Called when there is another holder, before the wait, and when a predecessor is given up, each
  // once and with a sentence that says so.
  std::function<void(const std::string&)> on_wait = [](const std::string&) {};
  // Called once when this file system knows no locks.
  std::function<void(const std::string&)> on_unlocked = [](const std::string&) {};
  Clock* clock = &Clock::Real();
};

// Held as long as it lives, and at most as long as the process: the kernel (or the file server)
// frees it when its owner dies, in whatever way. The file "writer.lock", with the holder's words in
// it, stays.
class DirectoryLock {
 public:
  // Of a file system that knows no locks.
  DirectoryLock() = default;

  bool is_held() const { return fd_.valid(); }

  // To be asked before anything that others may see changes in the directory. Aborted, with the new
  // holder's words: another start has put its own lock in the place of this one, and this process
  // must not write there any more. Errors of reading the file. Thread-safe.
  absl::Status Check() const;

 private:
  friend absl::StatusOr<DirectoryLock> LockDirectory(const std::string& directory,
                                                     const DirectoryLockOptions& options);
  DirectoryLock(UniqueFd fd, std::string path, std::string content)
      : fd_(std::move(fd)), path_(std::move(path)), content_(std::move(content)) {}

  UniqueFd fd_;
  std::string path_;
  std::string content_;  // that this process wrote into it; no other start's is the same
};

// `directory` exists. AlreadyExists when another job still holds it after its time: the text names
// the holder (process, host, job, since when).
//
// A predecessor that still holds it after its time is given up, where the job's name is its own
// (else DeadlineExceeded: it may be another job), and a new file takes the place of the one that it
// has locked: some file servers (NFSv3) keep the lock of a lost machine until that machine is there
// again. REQUIRES of a restart: the job's earlier epoch is over, so that at most a process which
// stood still, and has not heard of its end, still believes that it holds the lock. Check tells
// that one.
//
// Where the file system has no locks (flock over NFS without a lock daemon: ENOLCK), on_unlocked is
// called and the lock is not held. Other errors: ErrnoStatus of opening, writing or renaming the
// file.
absl::StatusOr<DirectoryLock> LockDirectory(const std::string& directory,
                                            const DirectoryLockOptions& options);

// The words for the process that holds the directory; "" where nobody does, and where that cannot
// be found out. A job that asks for the lock at the same moment may see this call as a holder.
std::string WriterOf(const std::string& directory);

}  // namespace convene::worker
